#include "kernels/cpu/avx2/lanes.h"
// The shared body is written over the lanes above.
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/kv_row_body.h"

namespace tare::kernels {

const AttendIsa kAttendAvx2{scratch_bytes, attend, finish};

const KvRow kKvRowAvx2 = kKvRowBodies<Lanes>;

}  // namespace tare::kernels
