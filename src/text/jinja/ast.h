#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tare::text::jinja {

/// The parsed template. Nothing in it changes after parsing, so any number of threads may render it at once.
/// Names are numbers: places in Template::names.

using NameId = int;

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

struct CallSignature {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr spread;        // *args
  ExpressionPtr spread_named;  // **kwargs
};

enum class ExpressionKind : uint8_t {
  kConstant,    // value
  kName,        // name
  kList,        // children
  kTuple,       // children
  kDict,        // children: key, value, key, value, ...
  kAttribute,   // children[0].text
  kItem,        // children[0][children[1]]
  kSlice,       // children[0][children[1]:children[2]:children[3]], absent ones null
  kCall,        // children[0](call)
  kFilter,      // children[0] | text(call); children[0] null: the body of a filter block
  kTest,        // children[0] is text(call)
  kNot,         // children[0]
  kNegative,    // children[0]
  kPositive,    // children[0]
  kBinary,      // children[0] operation children[1]
  kConcat,      // children joined by ~
  kAnd,         // children[0] and children[1]
  kOr,          // children[0] or children[1]
  kComparison,  // children[0] comparisons[0] children[1] comparisons[1] children[2] ...
  kCondition,   // children[0] if children[1] else children[2] (may be null)
};

enum class Operation : uint8_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class Comparison : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  Operation operation = Operation::kAdd;
  int line = 0;
  int depth = 1;  // of the tree below
  NameId name = -1;
  Native native = nullptr;  // of a filter or test; null: unknown, fails when it is reached
  std::string text;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<Comparison> comparisons;
  std::unique_ptr<CallSignature> call;
};

enum class StatementKind : uint8_t {
  kText,         // text
  kOutput,       // expression
  kIf,           // branches
  kFor,          // target in expression if condition: body else alternative
  kSet,          // target = expression
  kSetBlock,     // target = body, through the filters of expression (may be null)
  kMacro,        // macro
  kCallBlock,    // expression (a call) with macro as its caller
  kFilterBlock,  // body through the filters of expression
  kWith,         // assignments, body
  kScope,        // body with names of its own (generation, block, autoescape false)
  kBreak,
  kContinue,
};

/// What is assigned to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  NameId name = -1;
  std::string attribute;  // of a namespace, when not empty
  std::vector<Target> parts;
  bool is_tuple = false;
};

struct MacroDefinition {
  std::string name;
  NameId name_id = -1;
  std::vector<NameId> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
  bool explicit_caller = false;  // caller is among the parameters
  NameId caller_id = -1, kwargs_id = -1, varargs_id = -1;
};

struct Branch {
  ExpressionPtr condition;  // null: else
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  bool recursive = false;
  bool uses_loop = false;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  Target target;
  Body body;
  Body alternative;
  std::vector<Branch> branches;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  std::unique_ptr<MacroDefinition> macro;
};

struct Template {
  std::vector<std::string> names;
  NameId loop_id = -1;
  Body body;
};

}  // namespace tare::text::jinja
