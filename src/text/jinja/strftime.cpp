#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "text/jinja/runtime.h"

namespace tare::text::jinja {

namespace {

constexpr std::string_view kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
constexpr std::string_view kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                        "July",    "August",   "September", "October", "November", "December"};

bool leap(int year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

struct Day {
  int weekday;   // 0 Sunday
  int year_day;  // 0 based
};

Day day_of(const CivilTime& time) {
  const std::chrono::sys_days days = std::chrono::year(time.year) /
                                     std::chrono::month(static_cast<unsigned>(time.month)) /
                                     std::chrono::day(static_cast<unsigned>(time.day));
  const std::chrono::sys_days first = std::chrono::year(time.year) / std::chrono::January / std::chrono::day(1);
  return {static_cast<int>(std::chrono::weekday(days).c_encoding()), static_cast<int>((days - first).count())};
}

struct IsoWeek {
  int year, week;
};
IsoWeek iso_week(const CivilTime& time, const Day& day) {
  const int monday_based = (day.weekday + 6) % 7;
  const int week = (day.year_day - monday_based + 10) / 7;
  const auto weeks_in = [](int year) {
    const Day last = day_of({year, 12, 31});
    return last.weekday == 4 || (leap(year) && last.weekday == 5) ? 53 : 52;
  };
  if (week < 1) return {time.year - 1, weeks_in(time.year - 1)};
  if (week > weeks_in(time.year)) return {time.year + 1, 1};
  return {time.year, week};
}

std::string padded(int value, size_t width, char fill, char flag) {
  if (flag == '-') return fmt::format("{}", value);
  if (flag == '_') fill = ' ';
  if (flag == '0') fill = '0';
  const std::string digits = fmt::format("{}", value);
  return digits.size() >= width ? digits : std::string(width - digits.size(), fill) + digits;
}

std::string changed_case(std::string text, char flag) {
  if (flag != '^' && flag != '#') return text;
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
  }
  return text;
}

// One directive; nothing when it is unknown.
std::optional<std::string> directive(const CivilTime& time, const Day& day, char type, char flag) {
  const auto number = [&](int value, size_t width, char fill = '0') { return padded(value, width, fill, flag); };
  const auto recurse = [&](std::string_view format) {
    Out<std::string> text = format_time(time, format);
    return changed_case(text.ok() ? *std::move(text) : std::string(), flag);
  };
  const int hour12 = time.hour % 12 == 0 ? 12 : time.hour % 12;
  const auto& weekday = kDays[static_cast<size_t>(day.weekday)];
  const auto& month = kMonths[static_cast<size_t>(time.month - 1)];
  switch (type) {
    case 'a':
      return changed_case(std::string(weekday.substr(0, 3)), flag);
    case 'A':
      return changed_case(std::string(weekday), flag);
    case 'b':
    case 'h':
      return changed_case(std::string(month.substr(0, 3)), flag);
    case 'B':
      return changed_case(std::string(month), flag);
    case 'c':
      return recurse("%a %b %e %H:%M:%S %Y");
    case 'C':
      return number(time.year / 100, 2);
    case 'd':
      return number(time.day, 2);
    case 'D':
    case 'x':
      return recurse("%m/%d/%y");
    case 'e':
      return number(time.day, 2, ' ');
    case 'f':
      return fmt::format("{:06}", time.microsecond);
    case 'F':
      return recurse("%Y-%m-%d");
    case 'g':
      return number(iso_week(time, day).year % 100, 2);
    case 'G':
      return number(iso_week(time, day).year, 4);
    case 'H':
      return number(time.hour, 2);
    case 'I':
      return number(hour12, 2);
    case 'j':
      return number(day.year_day + 1, 3);
    case 'k':
      return number(time.hour, 2, ' ');
    case 'l':
      return number(hour12, 2, ' ');
    case 'm':
      return number(time.month, 2);
    case 'M':
      return number(time.minute, 2);
    case 'n':
      return "\n";
    case 'p': {
      const std::string half = time.hour < 12 ? "AM" : "PM";
      return flag == '#' ? std::string(time.hour < 12 ? "am" : "pm") : half;
    }
    case 'P':
      return changed_case(time.hour < 12 ? "am" : "pm", flag == '^' ? '^' : '\0');
    case 'r':
      return recurse("%I:%M:%S %p");
    case 'R':
      return recurse("%H:%M");
    case 's': {
      std::tm local{};
      local.tm_year = time.year - 1900, local.tm_mon = time.month - 1, local.tm_mday = time.day;
      local.tm_hour = time.hour, local.tm_min = time.minute, local.tm_sec = time.second, local.tm_isdst = -1;
      return fmt::format("{}", static_cast<int64_t>(std::mktime(&local)));
    }
    case 'S':
      return number(time.second, 2);
    case 't':
      return "\t";
    case 'T':
    case 'X':
      return recurse("%H:%M:%S");
    case 'u':
      return number(day.weekday == 0 ? 7 : day.weekday, 1);
    case 'U':
      return number((day.year_day + 7 - day.weekday) / 7, 2);
    case 'V':
      return number(iso_week(time, day).week, 2);
    case 'w':
      return number(day.weekday, 1);
    case 'W':
      return number((day.year_day + 7 - (day.weekday + 6) % 7) / 7, 2);
    case 'y':
      return number(time.year % 100, 2);
    case 'Y':
      return number(time.year, time.year < 1000 ? 1 : 4);
    case 'z':
    case 'Z':
      return "";  // a time without a zone
    case '%':
      return "%";
    default:
      return std::nullopt;
  }
}

}  // namespace

Out<std::string> format_time(const CivilTime& time, std::string_view format) {
  const bool valid = time.month >= 1 && time.month <= 12 && time.day >= 1 && time.day <= 31 && time.hour >= 0 &&
                     time.hour < 24 && time.minute >= 0 && time.minute < 60 && time.second >= 0 && time.second < 62 &&
                     time.year >= 1 && time.year <= 9999;
  if (!valid) return type_fault("not a moment of a calendar");
  const Day day = day_of(time);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
      continue;
    }
    size_t at = i + 1;
    char flag = '\0';
    while (at + 1 < format.size() && std::string_view("-_0^#").find(format[at]) != std::string_view::npos) {
      flag = format[at++];
    }
    if (at + 1 < format.size() && (format[at] == 'E' || format[at] == 'O')) ++at;
    if (const auto text = directive(time, day, format[at], flag)) {
      out += *text;
      i = at;
    } else {
      out += '%';  // glibc leaves what it does not know
    }
  }
  return out;
}

}  // namespace tare::text::jinja
