#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <memory>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "base/size_text.h"
#include "checkpoints/checkpoint.h"
#include "checkpoints/compare.h"
#include "checkpoints/write.h"
#include "cli/command.h"
#include "cli/known_answer.h"
#include "tensor/model_weights.h"

namespace tare::cli {

namespace {

struct Flags {
  std::string model;
  std::string to;
  std::string out;
  std::string dtype;
  bool allow_loss = false;
  bool overwrite = false;
};

Result<std::optional<tensor::DType>> parse_dtype(const std::string& text) {
  if (text.empty()) return std::optional<tensor::DType>();
  if (text == "float32") return std::optional(tensor::DType::kF32);
  if (text == "float16") return std::optional(tensor::DType::kF16);
  if (text == "bfloat16") return std::optional(tensor::DType::kBF16);
  return invalid_input("unknown type",
                       {.where = "--dtype", .expected = "float32, float16, bfloat16", .found = "'" + text + "'"});
}

// The same weights with every quantized matrix decoded when it is asked for. What a dense file cannot say goes to
// `losses`.
Status add_decoded(const std::shared_ptr<const tensor::ModelWeights>& source, tensor::ModelWeights& out,
                   std::vector<std::string>& losses) {
  int64_t activations = 0;
  for (const std::string& name : source->names()) {
    tensor::WeightInfo info = *source->find(name);
    if (info.activation.type != tensor::ActivationType::kNone) ++activations;
    info.activation = {};
    if (std::holds_alternative<tensor::DType>(info.form)) {
      TARE_TRY(out.add(name, std::move(info), [source, name] { return source->load(name); }));
      continue;
    }
    info.form = tensor::DType::kF32;
    TARE_TRY(out.add(name, info, [source, name, shape = info.shape]() -> Result<tensor::Weight> {
      TARE_ASSIGN(const tensor::Weight weight, source->load(name));
      TARE_ASSIGN(std::vector<float> values, tensor::to_f32(weight));
      return tensor::Weight(tensor::Tensor::from_f32(shape, std::move(values)));
    }));
  }
  if (activations > 0)
    losses.push_back(fmt::format("quantized inputs of {} matrices: dense weights say none", activations));
  if (!source->kv.k_dtype.empty()) losses.push_back("KV cache " + source->kv.k_dtype + ": dense weights say none");
  return {};
}

// Reads the result back and dequantizes both sides: a value that differs must be of a weight whose loss was named.
// Gives the number of weights that are equal in every value.
Result<int64_t> prove(Context& context, const tensor::ModelWeights& source, const std::string& folder,
                      std::vector<std::string>& losses) {
  TARE_ASSIGN(const tensor::ModelWeights written, checkpoints::load_checkpoint(folder));
  Progress progress(context.progress(), "compare", static_cast<int64_t>(source.names().size()), "tensors");
  TARE_ASSIGN(const auto differences, checkpoints::compare_weights(source, written, [&](const std::string&) -> Status {
                progress.advance();
                return check_interrupt("convert");
              }));
  for (const checkpoints::WeightDifference& d : differences) {
    const auto named = [&](const std::string& loss) { return loss.starts_with(d.name + ":"); };
    if (std::any_of(losses.begin(), losses.end(), named)) {
      losses.push_back(fmt::format("{}: measured: {}", d.name, d.what));
      continue;
    }
    return make_error(ErrorKind::kInternal, "the written weights are not those of the source",
                      {.where = d.name, .found = d.what});
  }
  return static_cast<int64_t>(source.names().size()) - static_cast<int64_t>(differences.size());
}

Status run(Context& context, Flags& flags) {
  TARE_ASSIGN(const std::optional<tensor::DType> dtype, parse_dtype(flags.dtype));
  TARE_ASSIGN(const checkpoints::CheckpointWriter* writer, checkpoints::find_writer(flags.to));
  TARE_ASSIGN(tensor::ModelWeights loaded, checkpoints::load_checkpoint(flags.model, context.load_options()));
  const auto source = std::make_shared<const tensor::ModelWeights>(std::move(loaded));
  if (flags.overwrite) TARE_TRY(checkpoints::check_replaceable(flags.out, flags.model));
  TARE_ASSIGN(AtomicDirectory folder, AtomicDirectory::create(flags.out, flags.overwrite));

  std::vector<std::string> losses;
  tensor::ModelWeights decoded;
  if (!writer->store && !writer->write) {
    decoded.config = source->config;
    TARE_TRY(add_decoded(source, decoded, losses));
  }
  TARE_ASSIGN(const checkpoints::SideFiles side, checkpoints::copy_side_files(flags.model, folder.path(), flags.to));
  auto progress = std::make_unique<Progress>(context.progress(), "convert",
                                             static_cast<int64_t>(source->names().size()), "tensors");
  TARE_ASSIGN(const checkpoints::WriteReport written,
              checkpoints::write_checkpoint({.folder = folder.path(),
                                             .format = flags.to,
                                             .source = flags.model,
                                             .weights = writer->store || writer->write ? source.get() : &decoded,
                                             .dense_dtype = dtype,
                                             .allow_loss = flags.allow_loss,
                                             .progress = [&](const std::string&) -> Status {
                                               progress->advance();
                                               return check_interrupt("convert");
                                             }}));
  progress.reset();
  losses.insert(losses.end(), written.losses.begin(), written.losses.end());
  TARE_ASSIGN(const int64_t proven,
              prove(context, writer->store || writer->write ? *source : decoded, folder.path(), losses));
  const json::array loss_list(losses.begin(), losses.end());
  std::vector<std::string> said = source->notes;
  said.insert(said.end(), side.notes.begin(), side.notes.end());
  for (const std::string& name : side.left_out) said.push_back("left out " + name);
  const json::array notes(said.begin(), said.end());
  TARE_ASSIGN(json::object answer, known_answer(context, folder.path()));
  TARE_TRY(checkpoints::write_manifest(folder.path(),
                                       {{"method", "convert"},
                                        {"source", flags.model},
                                        {"losses", loss_list},
                                        {"notes", notes},
                                        {"known_answer", std::move(answer)}},
                                       written.files));
  TARE_TRY(folder.commit());

  int64_t bytes = 0;
  for (const io::WrittenFile& file : written.files) bytes += static_cast<int64_t>(file.bytes);
  context.say(
      fmt::format("{}: {} as {}, {}", flags.out, source->format, flags.to, size_text(static_cast<uint64_t>(bytes))));
  context.say(
      fmt::format("read back and compared: {} of {} weights equal in every value", proven, source->names().size()));
  for (const std::string& loss : losses) context.say("loss: " + loss);
  for (const std::string& note : said) context.say("note: " + note);
  context.emit({{"out", flags.out},
                {"format", flags.to},
                {"bytes", bytes},
                {"losses", loss_list},
                {"exact_weights", proven},
                {"weights", source->names().size()},
                {"notes", notes},
                {"copied", json::array(side.copied.begin(), side.copied.end())}});
  return {};
}

}  // namespace

extern const Command kConvert;
const Command kConvert = {
    .name = "convert",
    .summary = "write a model in another format, refused where that would lose something",
    .examples =
        "tare convert model.gguf --to safetensors --dtype bfloat16 --out dense/\n"
        "tare convert gptq-model/ --to compressed-tensors --out out/",
    .declare = [](CLI::App& app) -> Runner {
      auto f = std::make_shared<Flags>();
      app.add_option("MODEL", f->model, "Hugging Face directory, .gguf or .safetensors file")->required();
      app.add_option("--to", f->to, "format of the result; safetensors holds plain dense weights")->required();
      app.add_option("--out", f->out, "folder of the result; must not exist yet")->required();
      app.add_option("--dtype", f->dtype, "float32, float16 or bfloat16 for dense weights (default: as they are)");
      app.add_flag("--allow-loss", f->allow_loss, "leave out what the format cannot say, and list it");
      app.add_flag("--overwrite", f->overwrite, "replace --out when it exists");
      return [f](Context& context) { return run(context, *f); };
    },
};

}  // namespace tare::cli
