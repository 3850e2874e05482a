#include "kernels/cpu/avx512vnni/lanes.h"
// The shared body is written over the lanes above.
#include "kernels/cpu/attention_body.h"
#include "kernels/cpu/kv_row_body.h"

namespace tare::kernels {

const AttendIsa kAttendAvx512Vnni{scratch_bytes, attend, finish};

const KvRow kKvRowAvx512Vnni = kKvRowBodies<Lanes>;

}  // namespace tare::kernels
