#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace tare {

/// How long work shows itself on standard error.
enum class ProgressMode {
  kOff,    // --no-progress, --quiet
  kLines,  // no terminal: a line every few seconds
  kBar,    // a terminal: one line, redrawn
};

/// kBar on a terminal, kLines elsewhere.
ProgressMode detect_progress_mode();

/// One piece of long work: a bar with rate and remaining time. advance() may be called from any thread and costs
/// little. The last state is drawn when the object goes, so work that ends early shows where.
class Progress {
 public:
  /// total 0: unknown, only count and rate are shown. unit: plural noun ("layers", "tokens"); "B" shows sizes.
  Progress(ProgressMode mode, std::string title, int64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t amount = 1);
  /// A short word on what is being done now ("model.layers.3.mlp.up_proj").
  void note(std::string_view detail);
  int64_t done() const { return done_.load(std::memory_order_relaxed); }

 private:
  void draw(bool last);

  ProgressMode mode_;
  std::string title_;
  int64_t total_;
  std::string unit_;
  std::atomic<int64_t> done_{0};
  std::chrono::steady_clock::time_point started_;
  std::atomic<int64_t> next_draw_ms_{0};
  std::mutex draw_mutex_;
  std::string detail_;
};

/// The text of one state, at most `width` columns when width > 0 (then with a bar if there is room).
std::string progress_text(std::string_view title, int64_t done, int64_t total, std::string_view unit, double seconds,
                          std::string_view detail, int width);

/// "0:07", "12:34", "3:02:01".
std::string duration_text(double seconds);

}  // namespace tare
