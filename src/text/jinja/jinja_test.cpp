#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "text/chat_template.h"

namespace tare::text {
namespace {

using Kind = ChatTemplateFailure::Kind;

struct Outcome {
  std::string text;
  std::optional<ChatTemplateFailure> failure;
};

Outcome render(const std::string& source, const TemplateLimits& limits = {}) {
  static const boost::json::value messages = boost::json::parse(
      R"([{"role": "user", "content": "Grüße"}, {"role": "assistant", "content": null, "items": 3}])");
  Outcome outcome;
  ChatTemplateFailure failure;
  const auto parsed = ChatTemplate::parse(source, "test", &failure);
  if (!parsed.ok()) return {"", failure};
  ChatTemplateInput input;
  input.messages = &messages.get_array();
  input.now = CivilTime{2024, 12, 30, 0, 5, 9};
  input.limits = limits;
  const auto text = parsed->render(input, &failure);
  if (!text.ok()) return {"", failure};
  return {*text, std::nullopt};
}

std::string shown(const Outcome& outcome) {
  return outcome.failure ? "error " + outcome.failure->message : outcome.text;
}

// Expected texts come from Jinja2 3.1.6 (sandbox, trim_blocks, lstrip_blocks).
TEST(Jinja, RendersAsJinja2) {
  const std::pair<const char*, const char*> kRows[] = {
      {"{{ 1/2 }} {{ -7//2 }} {{ -7%3 }} {{ 2**-1 }} {{ 1e16 }} {{ 1e15 }} {{ 0.00001 }} {{ 2**64 }}",
       "0.5 -4 2 0.5 1e+16 1000000000000000.0 1e-05 18446744073709551616"},
      {"{{ [1, 'a', none, true, 1.0, {'k': \"v'\"}, (1,)] }}", "[1, 'a', None, True, 1.0, {'k': \"v'\"}, (1,)]"},
      {"{{ ['\\x00\\u200b\\n☀'] }}", "['\\x00\\u200b\\n☀']"},
      {"{{ 'abcdef'[::-2] }}{{ 'äöü'[-2:] }}{{ [1,2,3][5:0:-1] }}{{ 'abc'[7] }}", "fdböü[3, 2]"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }}", "True False True"},
      {"{{ 'x' if false }}|{{ nope }}|{{ nope is defined }}|{{ nope|default('d') }}", "||False|d"},
      {"{{ 'ß ﬁ'|upper }} {{ 'ΟΔΟΣ'|lower }} {{ \"o'neil x-y\".title() }} {{ \"o'neil x-y\"|title }}",
       "SS FI οδος O'Neil X-Y O'neil X-Y"},
      {"{{ ' a  b c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }}", "['a', 'b c '] ['a,b', 'c']"},
      {"{{ {'b': [1, {}], 'a': 'é\"'}|tojson }} {{ {'a': [1]}|tojson(indent=2) }}",
       "{\"b\": [1, {}], \"a\": \"é\\\"\"} {\n  \"a\": [\n    1\n  ]\n}"},
      {"{{ 'abc'|attr('upper') is callable }}{% set ns = namespace(n=3) %}{{ ns|attr('n') }}{{ ('ab'|attr('upper'))() "
       "}}",
       "True3AB"},
      {"{{ {'a': 1}|attr('a') is defined }}|{{ {}|attr('items') is callable }}|{{ 'x'|attr('__class__') }}|",
       "False|True||"},
      {"{{ messages[1].items is callable }} {{ messages[1]['items'] }}", "True 3"},
      {"{% set ns = namespace(n=0) %}{% for i in [1,2] %}{% set ns.n = ns.n + i %}{% set x = i %}{% endfor %}{{ ns.n "
       "}}{{ x }}",
       "3"},
      {"{% for i in 'abc' %}{{ loop.previtem }}{{ i }}{{ loop.nextitem }}{{ loop.last }} {% endfor %}",
       "abFalse abcFalse bcTrue "},
      {"{% for i in [{'n': 1, 'c': [{'n': 2}]}] recursive %}{{ i.n }}@{{ loop.depth }}{% if i.c %}({{ loop(i.c) }}){% "
       "endif %}{% endfor %}",
       "1@1(2@2)"},
      {"{% macro f(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, z=4) }}",
       "11(){}12(3,){'z': 4}"},
      {"{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(2) %}{{ y }}!{% endcall %}", "<2!>"},
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc {{ 1 }}\n{%- if true %} d{% endif -%}\n\n e", "a\n  b\nc 1 de"},
      {"{{ '%s %05.1f %r %d%%' % ('a', 3.14159, 'b', 7) }} {{ '{:>4}|{:,}|{0}'.format if false }}", "a 003.1 'b' 7% "},
      {"{{ '{:>4}|{:,}|{!r}'.format(1, 1234567, 'x') }}", "   1|1,234,567|'x'"},
      {"{{ ('<b>'|safe) + '<c>' }} {{ '<d>' ~ ('<b>'|safe) }}", "<b>&lt;c&gt; <d><b>"},
      {"{% if messages|selectattr('nope') %}always{% endif %}{% if nope|selectattr('x')|list %}never{% endif %}",
       "always"},
      {"{% for g in [{'k': 'a'}, {'k': 'b'}, {'k': 'a'}]|groupby('k') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}",
       "a2b1"},
      {"{% if false %}{{ 1|no_such_filter }}{% endif %}ok", "ok"},
      {"{{ strftime_now('%d %b %Y %A %j %U %W %V %G %I%p %-d') }}", "30 Dec 2024 Monday 365 52 53 01 2025 12AM 30"},
      {"{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}", "1"},
      {"{{ [3, 1, 2]|sort|reverse|join('-') }} {{ ['b', 'A']|sort }} {{ [1, 2, 3]|batch(2, 0)|list }}",
       "3-2-1 ['A', 'b'] [[1, 2], [3, 0]]"},
  };
  for (const auto& [source, expected] : kRows) EXPECT_EQ(shown(render(source)), expected) << source;
}

TEST(Jinja, ErrorsNameKindAndLine) {
  struct Row {
    const char* source;
    Kind kind;
    int line;
  };
  const Row kRows[] = {
      {"a\n{{ raise_exception('no') }}", Kind::kRaised, 2},
      {"\n\n{{ nope.x }}", Kind::kFailed, 3},
      {"{{ 'a' + 1 }}", Kind::kFailed, 1},
      {"{% for x in none %}{% endfor %}", Kind::kFailed, 1},
      {"\n{{ [].append(1) }}", Kind::kFailed, 2},
      {"{{ ''.__class__.__mro__ }}", Kind::kFailed, 1},
      {"{{ 1/0 }}", Kind::kFailed, 1},
      {"\n{{ 1|no_such_filter }}", Kind::kSyntax, 2},
      {"{% for x in [] %}{{ 1 is no_such_test }}{% endfor %}", Kind::kSyntax, 1},
      {"x\n{% if a %}", Kind::kSyntax, 2},
      {"{% include 'x' %}", Kind::kSyntax, 1},
      {"{% break %}", Kind::kSyntax, 1},
      {"{{ 'abc }}", Kind::kSyntax, 1},
      {"{{ (1] }}", Kind::kSyntax, 1},
      {"{# open", Kind::kSyntax, 1},
      {"{% raw %}", Kind::kSyntax, 1},
      {"{{ 1 }", Kind::kSyntax, 1},
      {"{{ '\\ud800' }}", Kind::kSyntax, 1},
  };
  for (const Row& row : kRows) {
    const Outcome outcome = render(row.source);
    ASSERT_TRUE(outcome.failure) << row.source << " gave " << outcome.text;
    EXPECT_EQ(outcome.failure->kind, row.kind) << row.source << ": " << outcome.failure->message;
    EXPECT_EQ(outcome.failure->line, row.line) << row.source;
  }
  EXPECT_EQ(render("{{ raise_exception('exactly ' ~ 1) }}").failure->message, "exactly 1");
  for (const char* name : {"random", "pprint"}) {
    const auto failure = render(std::string("{{ [1]|") + name + " }}").failure;
    ASSERT_TRUE(failure);
    EXPECT_NE(failure->message.find(std::string("filter '") + name + "' is not supported"), std::string::npos);
  }
  EXPECT_EQ(render("\xff").failure->kind, Kind::kSyntax);
}

std::string repeat(const std::string& unit, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += unit;
  return out;
}

TEST(Jinja, HostileTemplatesEndInALimit) {
  const std::string kLoop = "{% for i in range(90000) %}";
  const std::string sources[] = {
      "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
      "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ "
      "g() }}",
      "{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}",
      kLoop + kLoop + "x{% endfor %}{% endfor %}",
      "{{ 'x' * 1000000000 }}",
      "{{ 'x' * 99999999999999999999 }}",
      "{{ [1] * 1000000000 }}",
      "{{ '%999999999d' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ 'x'.center(999999999) }}",
      "{{ 'x'|indent(999999999, true) }}",
      "{{ range(100001) }}",
      "{{ 10 ** 1000 }}",
      "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('x', 'xxxxxx') %}{% "
      "endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(d={}) %}{% for i in range(9999) %}{% set ns.d = {'a': ns.d} %}{% endfor %}",
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, "
      "ns.b] "
      "%}{% endfor %}{{ ns.a == ns.b }}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
      "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a|tojson "
      "}}",
      "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
      "{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}",
      "{{ " + repeat("[", 100000) + repeat("]", 100000) + " }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ 1" + repeat("+1", 100000) + " }}",
      "{{ 1" + repeat("|string", 100000) + " }}",
      "{{ x" + repeat(".x", 100000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 100000) + " }}",
      "{{ f" + repeat("(f", 100000) + repeat(")", 100000) + " }}",
      repeat("{% if 1 %}", 100000) + repeat("{% endif %}", 100000),
      repeat("{% for i in x %}", 100000) + repeat("{% endfor %}", 100000),
  };
  TemplateLimits limits;  // smaller than usual, so that sanitizers get through
  limits.max_steps = 500'000;
  limits.max_output_bytes = 1 << 20;
  for (const std::string& source : sources) {
    const Outcome outcome = render(source, limits);
    ASSERT_TRUE(outcome.failure) << source.substr(0, 120) << " gave " << outcome.text.substr(0, 80);
    EXPECT_EQ(outcome.failure->kind, Kind::kLimit) << source.substr(0, 120) << ": " << outcome.failure->message;
  }
}

TEST(Jinja, LongButFlatTemplatesRun) {
  EXPECT_EQ(render("{{ 1" + repeat(" ~ 1", 5000) + " }}").text, repeat("1", 5001));
  EXPECT_EQ(render("{{ ''" + repeat(" + 'a'", 300) + " }}").text, repeat("a", 300));
  std::string chain = "{% if 0 %}";
  for (int i = 0; i < 2000; ++i) chain += "{% elif 0 %}x";
  EXPECT_EQ(render(chain + "{% else %}y{% endif %}").text, "y");
}

// The deepest that the limits allow must fit the stack, also of a server's worker thread (8 MiB) and with sanitizers.
TEST(Jinja, DeepestAllowedRecursionFitsTheStack) {
  const std::string ifs = repeat("{% if 1 %}", 60), endifs = repeat("{% endif %}", 60);
  const std::string loops = repeat("{% for i in [1] %}", 60), endloops = repeat("{% endfor %}", 60);
  const std::string bodies[] = {
      ifs + "{{ [[[[[[[[f()" + repeat("|trim", 200) + "]]]]]]]] }}" + endifs,
      loops + "{{ f() }}" + endloops,
      "{{ " + repeat("1 if (", 15) + "f()" + repeat(")", 15) + " }}",
      "{{ f()" + repeat(" + 'x'", 400) + " }}",
      "{{ x" + repeat("[(", 15) + "f()" + repeat(")]", 15) + " }}",
      "{% set s %}{% filter trim %}{% with a = 1 %}{% call f() %}{{ f() }}{% endcall %}{% endwith %}{% endfilter %}{% "
      "endset %}",
  };
  for (const std::string& body : bodies) {
    const Outcome outcome =
        render("{% set x = {} %}{% macro f() %}" + body + "{{ caller() if caller }}{% endmacro %}{{ f() }}");
    ASSERT_TRUE(outcome.failure) << body.substr(0, 80);
    EXPECT_EQ(outcome.failure->kind, Kind::kLimit) << body.substr(0, 80) << outcome.failure->message;
    const std::string& message = outcome.failure->message;
    EXPECT_TRUE(message.starts_with("evaluation too deep") || message.starts_with("macros call")) << message;
  }
}

TEST(Jinja, FiltersOfFiltersEnd) {
  // Each level is lazy and the last one is never walked, so this prints generators; it must not nest 5000 calls.
  EXPECT_FALSE(render("{{ 'a'|map(" + repeat("'map', ", 5000) + "'upper')|list }}").failure);
}

TEST(Jinja, CyclesAreFreed) {
  // Leak checkers watch this one.
  EXPECT_EQ(
      render("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{% macro m() %}{% endmacro %}"
             "{% set ns.m = m %}{% for i in [1] %}{% set ns.loop = loop %}{{ loop.changed(loop, ns) }}{% endfor %}"
             "{% set ns.next = ns.loop.changed %}")
          .text,
      "True");
}

TEST(Jinja, DeepJsonInputIsRefused) {
  boost::json::value deep = "x";
  for (int i = 0; i < 5000; ++i) deep = boost::json::array{std::move(deep)};
  ChatTemplateInput input;
  input.tools = &deep;
  const auto parsed = ChatTemplate::parse("{{ tools }}", "deep");
  ASSERT_TRUE(parsed.ok());
  ChatTemplateFailure failure;
  EXPECT_FALSE(parsed->render(input, &failure).ok());
  EXPECT_EQ(failure.kind, Kind::kLimit);
}

TEST(ChatTemplate, ExtraArgumentsCannotReplaceTheConversation) {
  const boost::json::value kwargs = boost::json::parse(R"({"messages": []})");
  ChatTemplateInput input;
  input.kwargs = &kwargs.get_object();
  const auto parsed = ChatTemplate::parse("x", "reserved");
  ASSERT_TRUE(parsed.ok());
  const auto text = parsed->render(input);
  ASSERT_FALSE(text.ok());
  EXPECT_NE(text.error().message().find("'messages'"), std::string::npos);
}

TEST(ChatTemplate, ExtraArgumentsWinOverSpecialTokens) {
  const boost::json::value kwargs = boost::json::parse(R"({"bos_token": "<k>"})");
  ChatTemplateInput input;
  input.kwargs = &kwargs.get_object();
  input.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(*ChatTemplate::parse("{{ bos_token }}{{ eos_token }}", "tokens")->render(input), "<k></s>");
}

TEST(ChatTemplate, ProbeAcceptsARefusalAndReportsADefect) {
  EXPECT_TRUE(ChatTemplate::parse("{{ raise_exception('system first') }}", "a")->probe({}).ok());
  EXPECT_TRUE(ChatTemplate::parse("{{ messages[0].content }}", "a")->probe({}).ok());
  EXPECT_FALSE(ChatTemplate::parse("{{ no.such.thing }}", "a")->probe({}).ok());
}

TEST(ChatTemplate, ThreadsShareOneTemplate) {
  const auto parsed =
      ChatTemplate::parse("{% macro m(x) %}{{ x }}{% endmacro %}{% for i in range(50) %}{{ m(i) }}{% endfor %}", "t");
  ASSERT_TRUE(parsed.ok());
  const std::string expected = *parsed->render({});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto text = parsed->render({});
        wrong[t] += !text.ok() || *text != expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace tare::text
