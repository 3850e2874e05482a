#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "cli/command.h"
#include "io/safetensors_writer.h"
#include "model/architecture.h"
#include "model/weight_plan.h"
#include "numerics/mini_float.h"

namespace tare::cli {

namespace {

// Shapes of well-known models; the weights are random.
struct NamedShape {
  std::string_view name;
  int64_t hidden, intermediate, layers, heads, kv_heads, vocab;
};
constexpr NamedShape kShapes[] = {
    {"135m", 576, 1536, 30, 9, 3, 49152},
    {"1.1b", 2048, 5632, 22, 32, 4, 32000},
    {"3b", 3072, 8192, 28, 24, 8, 128256},
};

struct Flags {
  std::string shape = "1.1b";
  std::string out;
};

// bf16 values, uniform with the standard deviation of a layer that keeps its input's size; norms are 1.
void fill(std::vector<uint16_t>& values, uint64_t& state, double deviation) {
  const double width = deviation * std::sqrt(12.0);
  for (uint16_t& v : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double u = static_cast<double>(state >> 11) * 0x1p-53 - 0.5;
    v = numerics::f32_to_bf16(static_cast<float>(u * width));
  }
}

Status random_model(Context& context, Flags& flags) {
  const auto* shape =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const NamedShape& s) { return s.name == flags.shape; });
  if (shape == std::end(kShapes)) {
    return invalid_input(
        "unknown shape",
        {.where = "--shape", .expected = "135m, 1.1b or 3b", .found = fmt::format("'{}'", flags.shape)});
  }
  const json::object config{{"architectures", {"LlamaForCausalLM"}},
                            {"model_type", "llama"},
                            {"hidden_size", shape->hidden},
                            {"intermediate_size", shape->intermediate},
                            {"num_hidden_layers", shape->layers},
                            {"num_attention_heads", shape->heads},
                            {"num_key_value_heads", shape->kv_heads},
                            {"vocab_size", shape->vocab},
                            {"max_position_embeddings", 16384},
                            {"rms_norm_eps", 1e-5},
                            {"rope_theta", 10000.0},
                            {"hidden_act", "silu"},
                            {"torch_dtype", "bfloat16"},
                            {"tie_word_embeddings", false}};
  TARE_ASSIGN(const model::Architecture arch, model::describe_architecture(config));
  TARE_ASSIGN(AtomicDirectory folder, AtomicDirectory::create(flags.out, false));
  TARE_TRY(write_file_atomically(folder.path() + "/config.json", boost::json::serialize(config) + "\n"));
  std::vector<io::TensorDeclaration> declared;
  int64_t parameters = 0;
  for (const model::NeededWeight& weight : model::needed_weights(arch, false)) {
    declared.push_back({weight.name, tensor::DType::kBF16, weight.shape});
    TARE_ASSIGN(const int64_t count, tensor::element_count(weight.shape));
    parameters += count;
  }
  TARE_ASSIGN(io::SafetensorsWriter writer, io::SafetensorsWriter::create_in_folder(folder.path(), declared));
  Progress progress(context.progress(), "write", static_cast<int64_t>(declared.size()), "tensors");
  uint64_t state = context.options().seed.value_or(1);
  std::vector<uint16_t> values;
  for (const io::TensorDeclaration& one : declared) {
    TARE_TRY(check_interrupt("random model"));
    if (one.shape.size() == 1) {
      values.assign(static_cast<size_t>(one.shape[0]), numerics::f32_to_bf16(1.0f));
      TARE_TRY(writer.append(one.name, std::as_bytes(std::span(values))));
    } else {
      values.resize(static_cast<size_t>(one.shape[1]));
      for (int64_t row = 0; row < one.shape[0]; ++row) {
        fill(values, state, 1.0 / std::sqrt(static_cast<double>(one.shape[1])));
        TARE_TRY(writer.append(one.name, std::as_bytes(std::span(values))));
      }
    }
    progress.advance();
  }
  TARE_TRY(writer.finish());
  TARE_TRY(folder.commit());
  context.say(fmt::format("{}: {} random parameters in bf16", flags.out, parameters));
  context.emit({{"out", flags.out}, {"shape", flags.shape}, {"parameters", parameters}, {"bytes", 2 * parameters}});
  return {};
}

}  // namespace

extern const Command kBenchRandomModel;
const Command kBenchRandomModel = {
    .name = "bench random-model",
    .summary = "write a model of a known shape with random weights, to measure speed and memory with",
    .examples = "tare bench random-model --shape 1.1b --out random-1.1b",
    .declare = [](CLI::App& app) -> Runner {
      auto flags = std::make_shared<Flags>();
      app.add_option("--shape", flags->shape, "135m, 1.1b (TinyLlama) or 3b (Llama 3.2)")->capture_default_str();
      app.add_option("--out", flags->out, "folder of the model; must not exist yet")->required();
      return [flags](Context& context) { return random_model(context, *flags); };
    },
};

}  // namespace tare::cli
