#include "eval/gate.h"

#include <gtest/gtest.h>

#include "eval/judging_text.h"
#include "eval/report.h"

namespace tare::eval {
namespace {

TEST(Gate, ReadsLimits) {
  const GateLimits all = *parse_gate("kl=0.5,top1=0.8,ppl_ratio=1.25");
  EXPECT_EQ(all.kl, 0.5);
  EXPECT_EQ(all.top1, 0.8);
  EXPECT_EQ(all.ppl_ratio, 1.25);
  const GateLimits one = *parse_gate("top1=1");
  EXPECT_EQ(one.top1, 1);
  EXPECT_TRUE(std::isinf(one.kl) && std::isinf(one.ppl_ratio));
  for (const char* wrong :
       {"", ",", "kl", "kl=", "kl=nan", "kl=inf", "kl=1e999", "kl=0.5;top1=1", "KL=1", "kl=1,,top1=1"}) {
    EXPECT_FALSE(parse_gate(wrong).ok()) << wrong;
  }
}

TEST(Gate, FewerBitsMayCostMore) {
  for (int bits = 2; bits < 8; ++bits) {
    const GateLimits few = default_gate(bits), more = default_gate(bits + 1);
    EXPECT_GE(few.kl, more.kl);
    EXPECT_LE(few.top1, more.top1);
    EXPECT_GE(few.ppl_ratio, more.ppl_ratio);
  }
}

TEST(Gate, JudgingTextIsWhole) {
  EXPECT_EQ(judging_text().size(), 41111u);
  EXPECT_EQ(judging_text().front() == '\0' || judging_text().back() == '\0', false);
}

TEST(Report, EscapesWhatTheDocumentSays) {
  const json::object document{
      {"out", "<script>alert(1)</script>"},
      {"scheme", "W4A8"},
      {"bpw", 4.25},
      {"layers",
       {{{"name", "a\"b<c"}, {"error", 1e-3}, {"error_rtn", 2e-3}, {"scheme", "u4"}, {"status", "gptq"}},
        {{"name", "d"}, {"error", 0}, {"error_rtn", 0}}}},
      {"substitutions", {"x & y"}}};
  const std::string page = quantize_report_html(document);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("a&quot;b&lt;c"), std::string::npos);
  EXPECT_NE(page.find("x &amp; y"), std::string::npos);
  EXPECT_NE(page.find("not compared"), std::string::npos);
  EXPECT_EQ(page.find("nan"), page.npos) << page;
}

TEST(Report, ADocumentWithNothingInIt) {
  EXPECT_NE(quantize_report_html({}).find("</html>"), std::string::npos);
}

}  // namespace
}  // namespace tare::eval
