#include "base/json.h"

#include <gtest/gtest.h>

namespace tare::json {
namespace {

TEST(Json, RefusesWhatAFileMustNotSay) {
  EXPECT_TRUE(parse(R"({"a": {"a": 1}, "b": [1, 2]})", "t").ok());
  EXPECT_NE(parse(R"({"a": 1, "a": 2})", "t").error().message().find("'a' twice"), std::string::npos);
  EXPECT_NE(parse(R"({"x": [{"k": 1, "k": 1}]})", "t").error().message().find("'k' twice"), std::string::npos);
  EXPECT_FALSE(parse(R"({"a": 1} x)", "t").ok());
  EXPECT_FALSE(parse("", "t").ok());
  EXPECT_FALSE(parse("{", "t").ok());
  EXPECT_FALSE(parse(std::string(100, '[') + std::string(100, ']'), "t").ok());
}

TEST(Json, TypedMembers) {
  const value v = *parse(R"({"i": 3, "d": 3.0, "h": 3.5, "s": "x", "n": null})", "t");
  const object& o = v.get_object();
  EXPECT_EQ(*get_int(o, "i", "t"), 3);
  EXPECT_EQ(*get_int(o, "d", "t"), 3);
  EXPECT_FALSE(get_int(o, "h", "t").ok());
  EXPECT_FALSE(get_int(o, "s", "t").ok());
  EXPECT_FALSE(get_int(o, "n", "t").ok());
  EXPECT_EQ(*get_int_or(o, "n", 7, "t"), 7);
  EXPECT_FALSE(get_bool_or(o, "i", true, "t").ok());
}

}  // namespace
}  // namespace tare::json
