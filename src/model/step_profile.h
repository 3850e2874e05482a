#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace tare::model {

/// Operations of a forward pass, in its order. The input of some matrices is what they read: norm or activation, and
/// the rounding to codes; it stands before their product.
enum class StepOp : uint8_t {
  kPositions,
  kEmbed,
  kQkvInput,
  kQkv,
  kTurn,
  kStore,
  kAttention,
  kOutInput,
  kOut,
  kOutAdd,
  kGateUpInput,
  kGateUp,
  kDownInput,
  kDown,
  kDownAdd,
  kHeadInput,
  kLogitProduct,
  kLogits,
  kPass,  // the whole pass
};
inline constexpr int kStepOps = static_cast<int>(StepOp::kPass) + 1;

std::string_view step_op_name(StepOp op);
constexpr StepOp input_of(StepOp product) {
  return static_cast<StepOp>(static_cast<int>(product) - 1);
}

/// Where the time of forward passes goes, summed over layers and passes. Filled by a transformer that was given one;
/// without, it costs nothing but a test. About 25 ns an operation are the clock's own.
struct StepProfile {
  struct Row {
    int64_t calls = 0;
    double seconds = 0;
    int64_t bytes = 0;  // weights as stored, and the whole cache of a sequence; 0 where only small arrays are touched
  };
  std::array<Row, kStepOps> rows;

  Row& row(StepOp op) { return rows[static_cast<size_t>(op)]; }
};

/// Adds the time until its end to a row. profile may be null.
class StepTimer {
 public:
  StepTimer(StepProfile* profile, StepOp op, int64_t bytes = 0) : profile_(profile), op_(op), bytes_(bytes) {
    if (profile_) start_ = std::chrono::steady_clock::now();
  }
  ~StepTimer() {
    if (!profile_) return;
    StepProfile::Row& row = profile_->row(op_);
    ++row.calls;
    row.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    row.bytes += bytes_;
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

 private:
  StepProfile* profile_;
  StepOp op_;
  int64_t bytes_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tare::model
