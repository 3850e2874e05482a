#include "eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/size_text.h"
#include "eval/markup.h"

namespace tare::eval {

namespace {

constexpr std::string_view kStyle = R"(
:root{--fg:#1b1f24;--bg:#fff;--muted:#667;--line:#d8dce2;--a:#2464b4;--b:#d07a1e;--ok:#1f7a3d;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--fg:#e6e8eb;--bg:#15181c;--muted:#9aa3ad;--line:#343a42;--a:#6ea8f0;--b:#e8a35c;--ok:#5fc384;--bad:#ff8a80}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:64rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left}.ok{color:var(--ok)}.bad{color:var(--bad)}.muted{color:var(--muted)}
svg text{font:11px system-ui,sans-serif;fill:var(--muted)}details{margin:1rem 0}
)";

std::string text_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (!value || value->is_null()) return {};
  return value->is_string() ? std::string(value->get_string()) : boost::json::serialize(*value);
}

double number_of(const json::object& object, std::string_view key, double missing = std::nan("")) {
  const json::value* value = object.if_contains(key);
  const auto number = value ? json::as_number(*value) : std::nullopt;
  return number ? *number : missing;
}

// A number of the document as `pattern` writes it; a dash when it is not there.
std::string shown(const json::object& object, std::string_view key, std::string_view pattern, double factor = 1) {
  const double value = number_of(object, key);
  return std::isfinite(value) ? fmt::format(fmt::runtime(pattern), factor * value) : "&ndash;";
}

std::vector<const json::object*> objects_of(const json::object& object, std::string_view key) {
  std::vector<const json::object*> out;
  const json::value* value = object.if_contains(key);
  if (!value || !value->is_array()) return out;
  for (const json::value& item : value->get_array()) {
    if (item.is_object()) out.push_back(&item.get_object());
  }
  return out;
}

// An inline SVG with one vertical axis from `top` to `bottom`.
class Plot {
 public:
  Plot(double height, std::string_view label, double top, double bottom)
      : height_(height), top_(top), span_(std::max(top - bottom, 1e-12)) {
    svg_ = fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>", kWidth, height, label);
  }

  double step(size_t count) const { return (kWidth - kLeft) / static_cast<double>(count); }
  double x(size_t i, double step) const { return kLeft + step * (static_cast<double>(i) + 0.5); }

  void rule(double value, std::string_view color, std::string_view name) {
    svg_ += fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' stroke='{}'/><text x='2' y='{:.1f}'>{}</text>",
                        kLeft, kWidth, y(value), y(value), color, y(value) + 4, name);
  }
  void circle(double x, double value, double radius, std::string_view paint, std::string_view title) {
    svg_ += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='{:.1f}' {}><title>{}</title></circle>", x, y(value), radius,
                        paint, escape_markup(title));
  }
  void bar(double x, double width, double value, std::string_view title) {
    svg_ += fmt::format(
        "<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='var(--a)'><title>{}</title></rect>",
        x - width / 2, y(value), width, std::max(0.0, height_ - kBottom - y(value)), escape_markup(title));
  }
  std::string finish(std::string_view axis) {
    return svg_ + fmt::format("<text x='{}' y='{}'>{}</text></svg>", kLeft, height_ - 4, axis);
  }

 private:
  static constexpr double kWidth = 960, kLeft = 72, kBottom = 24, kTop = 8;
  double y(double value) const { return kTop + (height_ - kTop - kBottom) * (top_ - value) / span_; }

  double height_, top_, span_;
  std::string svg_;
};

// Relative squared errors of all matrices on a logarithmic axis: the method's and round-to-nearest's.
std::string error_plot(const std::vector<const json::object*>& layers) {
  double low = 1, high = 1e-12;
  for (const json::object* layer : layers) {
    for (const char* key : {"error", "error_rtn"}) {
      const double e = number_of(*layer, key);
      if (!(e > 0)) continue;
      low = std::min(low, e);
      high = std::max(high, e);
    }
  }
  if (low >= high) return {};
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  Plot plot(260, "error of each matrix", static_cast<double>(last), static_cast<double>(first));
  for (int decade = first; decade <= last; ++decade) plot.rule(decade, "var(--line)", fmt::format("1e{}", decade));
  const double step = plot.step(layers.size());
  const double radius = std::clamp(step * 0.4, 1.2, 4.0);
  for (size_t i = 0; i < layers.size(); ++i) {
    const double error = number_of(*layers[i], "error");
    const double rtn = number_of(*layers[i], "error_rtn");
    const std::string title =
        fmt::format("{}: {:.3g}, round-to-nearest {:.3g}", text_of(*layers[i], "name"), error, rtn);
    const double x = plot.x(i, step);
    if (rtn > 0) plot.circle(x, std::log10(rtn), radius, "fill='none' stroke='var(--b)'", title);
    if (error > 0) plot.circle(x, std::log10(error), radius, "fill='var(--a)'", title);
  }
  return plot.finish("matrices in forward order");
}

// Mean KL of each window, with the mean and the limit.
std::string window_plot(const json::object& gate) {
  const json::value* values = gate.if_contains("window_kl");
  if (!values || !values->is_array() || values->get_array().empty()) return {};
  std::vector<double> kl;
  for (const json::value& value : values->get_array()) kl.push_back(json::as_number(value).value_or(0));
  const json::value* limits = gate.if_contains("limits");
  const double limit = limits && limits->is_object() ? number_of(limits->get_object(), "kl") : std::nan("");
  double top = *std::max_element(kl.begin(), kl.end());
  if (std::isfinite(limit)) top = std::max(top, limit);
  if (!(top > 0)) return {};
  Plot plot(160, "KL of each window", top, 0);
  const double step = plot.step(kl.size());
  for (size_t i = 0; i < kl.size(); ++i) {
    plot.bar(plot.x(i, step), step * 0.7, kl[i], fmt::format("window {}: {:.4f}", i, kl[i]));
  }
  const double mean = number_of(gate, "kl_mean");
  if (std::isfinite(mean)) plot.rule(mean, "var(--b)", fmt::format("mean {:.3g}", mean));
  if (std::isfinite(limit)) plot.rule(limit, "var(--bad)", fmt::format("limit {:.3g}", limit));
  return plot.finish("windows of text");
}

std::string gate_part(const json::object& document) {
  const json::value* found = document.if_contains("gate");
  if (!found || !found->is_object()) {
    return "<h2>Gate</h2><p class=\"bad\">The result was not compared with its source (--gate off).</p>";
  }
  const json::object& gate = found->get_object();
  const json::value* passed = gate.if_contains("passed");
  const bool good = passed && passed->is_bool() && passed->get_bool();
  std::string out =
      fmt::format("<h2>Gate: <span class=\"{}\">{}</span></h2>", good ? "ok" : "bad", good ? "passed" : "failed");
  out += "<table><tr><th>measure</th><th>value</th><th>source</th></tr>";
  out += fmt::format("<tr><td>mean KL, nats</td><td>{} &plusmn; {}</td><td>0</td></tr>",
                     shown(gate, "kl_mean", "{:.4f}"), shown(gate, "kl_stderr", "{:.4f}", 1.96));
  out += fmt::format("<tr><td>KL, 99 % of positions below</td><td>{}</td><td>0</td></tr>",
                     shown(gate, "kl_p99", "{:.4f}"));
  out += fmt::format("<tr><td>top-1 agreement</td><td>{} %</td><td>100 %</td></tr>",
                     shown(gate, "top1_agreement", "{:.2f}", 100));
  out += fmt::format("<tr><td>perplexity</td><td>{}</td><td>{}</td></tr></table>", shown(gate, "perplexity", "{:.3f}"),
                     shown(gate, "reference_perplexity", "{:.3f}"));
  const json::value* reasons = gate.if_contains("reasons");
  if (reasons && reasons->is_array()) {
    for (const json::value& reason : reasons->get_array()) {
      if (reason.is_string()) out += "<p class=\"bad\">" + escape_markup(reason.get_string()) + "</p>";
    }
  }
  return out + window_plot(gate);
}

}  // namespace

std::string quantize_report_html(const json::object& document) {
  const std::vector<const json::object*> layers = objects_of(document, "layers");
  const std::string title = escape_markup(
      fmt::format("{} {} {}", text_of(document, "out"), text_of(document, "scheme"), text_of(document, "method")));
  std::string html = fmt::format(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
      "<title>{}</title><style>{}</style><h1>{}</h1>",
      title, kStyle, title);
  html += fmt::format(
      "<p>{} bits per weight, {}, format {}. {:.0f} s, peak memory {}.</p>", shown(document, "bpw", "{:.3f}"),
      size_text(static_cast<uint64_t>(number_of(document, "bytes", 0))), escape_markup(text_of(document, "format")),
      number_of(document, "seconds", 0), size_text(static_cast<uint64_t>(number_of(document, "peak_rss_bytes", 0))));
  html += gate_part(document);
  if (!layers.empty()) {
    html += fmt::format(
        "<h2>Error of each matrix</h2><p class=\"muted\">Relative squared {} error; filled: this result, open: "
        "round-to-nearest on the same grid.</p>",
        escape_markup(text_of(document, "error_kind")));
    html += error_plot(layers);
    html +=
        "<details><summary>All matrices</summary><table><tr><th>matrix</th><th>scheme</th><th>bits per weight</th>"
        "<th>error</th><th>round-to-nearest</th><th>tokens</th><th>status</th></tr>";
    for (const json::object* layer : layers) {
      html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                          escape_markup(text_of(*layer, "name")), escape_markup(text_of(*layer, "scheme")),
                          shown(*layer, "bpw", "{:.3f}"), shown(*layer, "error", "{:.3e}"),
                          shown(*layer, "error_rtn", "{:.3e}"), escape_markup(text_of(*layer, "tokens")),
                          escape_markup(text_of(*layer, "status")));
    }
    html += "</table></details>";
  }
  const json::value* notes = document.if_contains("substitutions");
  if (notes && notes->is_array() && !notes->get_array().empty()) {
    html += "<h2>What was decided or substituted</h2><ul>";
    for (const json::value& note : notes->get_array()) {
      if (note.is_string()) html += "<li>" + escape_markup(note.get_string()) + "</li>";
    }
    html += "</ul>";
  }
  return html + "</html>\n";
}

}  // namespace tare::eval
