#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/size_text.h"

namespace tare {

namespace {

constexpr int64_t kRedrawMs = 100;
constexpr int64_t kLineMs = 5000;
constexpr int kBarWidth = 20;

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string amount_text(double amount, std::string_view unit) {
  if (unit == "B") return size_text(static_cast<uint64_t>(std::max(0.0, amount)));
  if (amount >= 100 || amount == std::floor(amount)) return fmt::format("{:.0f}", amount);
  return fmt::format("{:.3g}", amount);
}

}  // namespace

ProgressMode detect_progress_mode() {
  return ::isatty(STDERR_FILENO) ? ProgressMode::kBar : ProgressMode::kLines;
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 360000000) return "?";
  const int64_t whole = std::llround(seconds);
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string progress_text(std::string_view title, int64_t done, int64_t total, std::string_view unit, double seconds,
                          std::string_view detail, int width) {
  const std::string_view noun = unit == "B" ? "" : unit;
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string counts = amount_text(static_cast<double>(done), unit);
  if (total > 0) counts += "/" + amount_text(static_cast<double>(total), unit);
  if (!noun.empty()) counts += fmt::format(" {}", noun);
  if (done > 0 && seconds > 0) counts += fmt::format(", {}/s", amount_text(rate, unit));
  counts += fmt::format(", {}", duration_text(seconds));
  if (total > 0 && done > 0 && done < total) {
    counts += fmt::format(" elapsed, {} left", duration_text(static_cast<double>(total - done) / rate));
  }

  std::string text(title);
  if (total > 0) {
    const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
    const int full = static_cast<int>(share * kBarWidth);
    if (width > 0) text += fmt::format(" [{:#<{}}{:.<{}}]", "", full, "", kBarWidth - full);
    text += fmt::format(" {:3.0f}%", std::floor(share * 100));
  }
  text += "  " + counts;
  if (!detail.empty()) text += fmt::format("  {}", detail);
  if (width > 0 && text.size() > static_cast<size_t>(width)) text.resize(static_cast<size_t>(width));
  return text;
}

Progress::Progress(ProgressMode mode, std::string title, int64_t total, std::string unit)
    : mode_(mode),
      title_(std::move(title)),
      total_(total),
      unit_(std::move(unit)),
      started_(std::chrono::steady_clock::now()),
      next_draw_ms_(mode == ProgressMode::kBar ? 0 : kLineMs) {}

Progress::~Progress() {
  if (mode_ != ProgressMode::kOff) draw(true);
}

void Progress::note(std::string_view detail) {
  if (mode_ == ProgressMode::kOff) return;
  const std::lock_guard lock(draw_mutex_);
  detail_ = detail;
}

void Progress::advance(int64_t amount) {
  done_.fetch_add(amount, std::memory_order_relaxed);
  if (mode_ == ProgressMode::kOff) return;
  const int64_t now_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started_).count();
  int64_t due = next_draw_ms_.load(std::memory_order_relaxed);
  if (now_ms < due) return;
  // One thread wins the turn to draw; the others go on working.
  const int64_t interval = mode_ == ProgressMode::kBar ? kRedrawMs : kLineMs;
  if (next_draw_ms_.compare_exchange_strong(due, now_ms + interval)) draw(false);
}

void Progress::draw(bool last) {
  const std::lock_guard lock(draw_mutex_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  const bool bar = mode_ == ProgressMode::kBar;
  // Short work without a terminal leaves no trace: a line would be noise.
  if (last && !bar && seconds * 1000 < kLineMs) return;
  const std::string text = progress_text(title_, done(), total_, unit_, seconds, last ? "" : std::string_view(detail_),
                                         bar ? terminal_width() - 1 : 0);
  if (bar)
    fmt::print(stderr, "\r\x1b[K{}{}", text, last ? "\n" : "");
  else
    fmt::print(stderr, "{}\n", text);
  std::fflush(stderr);
}

}  // namespace tare
