#include "kernels/cpu/avx2/lanes.h"
// The shared body is written over the lanes above.
#include "kernels/cpu/attention_body.h"

namespace tare::kernels {

const AttendIsa kAttendAvx2{scratch_bytes, attend, finish};

}  // namespace tare::kernels
