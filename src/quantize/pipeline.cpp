#include "quantize/pipeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/interrupt.h"
#include "checkpoints/module_pattern.h"
#include "model/release.h"
#include "model/weight_plan.h"
#include "numerics/mini_float.h"
#include "quantize/gptq.h"

namespace tare::quantize {

using model::LayerLinear;
using tensor::DType;
using tensor::QuantizedTensor;
using tensor::Tensor;
using tensor::Weight;
using tensor::WeightInfo;

namespace {

constexpr std::pair<std::string_view, HeadChoice> kHeads[] = {
    {"source", HeadChoice::kSource}, {"bfloat16", HeadChoice::kBF16}, {"float16", HeadChoice::kF16},
    {"float32", HeadChoice::kF32},   {"int8", HeadChoice::kInt8},     {"int8-a8", HeadChoice::kInt8A8},
};

// A matrix of the layers with its scheme after all exceptions.
struct Planned {
  LayerLinear linear;
  int64_t layer = 0;
  MatrixScheme scheme;
};

Result<std::vector<Planned>> plan_matrices(const model::Architecture& arch, const PipelineOptions& options) {
  struct Rule {
    std::string text;
    checkpoints::ModulePattern pattern;
    const SchemeException* exception = nullptr;  // nullptr: ignored
    int64_t hits = 0;
  };
  std::vector<Rule> rules;
  for (const std::string& text : options.ignore) {
    TARE_ASSIGN(checkpoints::ModulePattern pattern, checkpoints::ModulePattern::compile(text, "--ignore"));
    rules.push_back({text, std::move(pattern)});
  }
  for (const SchemeException& exception : options.exceptions) {
    TARE_ASSIGN(checkpoints::ModulePattern pattern, checkpoints::ModulePattern::compile(exception.pattern, "--set"));
    rules.push_back({exception.pattern, std::move(pattern), &exception});
  }
  std::vector<Planned> out;
  for (int64_t layer = 0; layer < arch.layers; ++layer) {
    const model::LayerLinears linears = model::layer_linears(arch, layer);
    for (const auto* group : {&linears.qkv, &linears.o, &linears.gate_up, &linears.down}) {
      for (const LayerLinear& linear : *group) {
        Planned planned{.linear = linear, .layer = layer, .scheme = options.scheme};
        for (Rule& rule : rules) {
          if (!rule.pattern.matches(linear.name)) continue;
          ++rule.hits;
          if (rule.exception) {
            TARE_TRY(apply_exception(*rule.exception, planned.scheme));
          } else {
            planned.scheme.keep = true;
          }
        }
        out.push_back(std::move(planned));
      }
    }
  }
  for (const Rule& rule : rules) {
    if (rule.hits == 0) {
      return invalid_input("pattern matches no matrix of the layers",
                           {.where = rule.exception ? "--set" : "--ignore",
                            .expected = "names like model.layers.0.mlp.down_proj",
                            .found = fmt::format("'{}'", rule.text)});
    }
  }
  return out;
}

// A source that is quantized already is rounded twice: said for a GGUF, which is often all there is of a model; refused
// for a checkpoint that declares it in its configuration, unless asked for.
Status check_source(const tensor::ModelWeights& source, const std::vector<Planned>& matrices,
                    const PipelineOptions& options, std::vector<std::string>& substitutions) {
  std::map<std::string, int64_t> forms;
  for (const Planned& planned : matrices) {
    const WeightInfo* info = source.find(planned.linear.name + ".weight");
    if (!info || planned.scheme.keep) continue;
    if (const auto* spec = std::get_if<tensor::QuantSpec>(&info->form)) ++forms[describe(*spec)];
  }
  if (forms.empty()) return {};
  std::string found;
  for (const auto& [form, count] : forms)
    found += fmt::format("{}{} matrices {}", found.empty() ? "" : ", ", count, form);
  if (source.format != "gguf" && !options.dequantize_first) {
    return invalid_input(
        "source is quantized already",
        {.where = source.format,
         .expected = "unquantized weights",
         .found = found,
         .hint = "start from the original model, or pass --dequantize-first and accept the double loss"});
  }
  substitutions.push_back(
      fmt::format("the source is quantized already ({}): its dequantized weights are quantized again, and errors are "
                  "measured against them, not against the original model",
                  found));
  return {};
}

Result<Tensor> as_dtype(const Weight& weight, DType dtype) {
  TARE_ASSIGN(std::vector<float> values, tensor::to_f32(weight));
  const tensor::Shape shape = tensor::shape_of(weight);
  if (dtype == DType::kF32) return Tensor::from_f32(shape, std::move(values));
  std::vector<uint16_t> out;
  out.reserve(values.size());
  for (const float v : values) out.push_back(dtype == DType::kF16 ? numerics::f32_to_f16(v) : numerics::f32_to_bf16(v));
  return Tensor::make(dtype, shape, Buffer::own(std::move(out)));
}

std::string form_name(const WeightInfo& info) {
  if (const DType* dtype = std::get_if<DType>(&info.form)) return std::string(tensor::dtype_name(*dtype));
  return describe(std::get<tensor::QuantSpec>(info.form));
}

class Pipeline {
 public:
  Pipeline(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
           const PipelineOptions& options, ThreadPool& pool)
      : source_(std::move(source)),
        arch_(arch),
        options_(options),
        pool_(pool),
        products_(options.kernels, options.caps, pool) {}

  Result<Outcome> run() {
    TARE_ASSIGN([[maybe_unused]] const auto leftovers, model::account_weights(*source_, arch_));
    TARE_ASSIGN(const std::vector<Planned> matrices, plan_matrices(arch_, options_));
    TARE_TRY(check_source(*source_, matrices, options_, out_.substitutions));
    TARE_TRY(reserve_memory(matrices));
    out_.weights.config = source_->config;
    out_.weights.format = "tare";
    out_.weights.kv = source_->kv;
    out_.error_kind = "weight";
    if (std::any_of(matrices.begin(), matrices.end(), [](const Planned& p) { return p.scheme.algorithm == "gptq"; })) {
      TARE_ASSIGN(grams_, collect_grams(*source_, arch_, options_.calibration, products_, options_.budget,
                                        options_.calibration_progress));
      out_.error_kind = "output";
    }
    if (options_.widths.kv != 16) {
      const std::string dtype = fmt::format("int{}", options_.widths.kv);
      out_.weights.kv = {dtype, dtype};
    }
    for (const Planned& planned : matrices) TARE_TRY(quantize_matrix(planned, static_cast<int64_t>(matrices.size())));
    TARE_TRY(add_tables());
    for (const std::string& name : source_->names()) {
      if (!out_.weights.contains(name)) TARE_TRY(keep(name));
    }
    for (const std::string& name : out_.weights.names()) {
      TARE_ASSIGN(const int64_t count, tensor::element_count(out_.weights.find(name)->shape));
      out_.parameters += count;
    }
    out_.stored_bytes = out_.weights.stored_bytes();
    return std::move(out_);
  }

 private:
  Status reserve_memory(const std::vector<Planned>& matrices) {
    if (!options_.budget) return {};
    int64_t largest = 0;
    int64_t result = 0;
    for (const Planned& planned : matrices) {
      const int64_t count = planned.linear.n * planned.linear.k;
      largest = std::max(largest, count);
      if (!planned.scheme.keep) result += count * planned.scheme.grid.bits / 8 + count / 16;
    }
    // f32 weight, its decoded form, codes
    TARE_ASSIGN(working_, options_.budget->reserve("one matrix in f32", static_cast<uint64_t>(largest) * 10));
    TARE_ASSIGN(result_, options_.budget->reserve("the quantized weights", static_cast<uint64_t>(result)));
    return {};
  }

  Status keep(const std::string& name) {
    const std::shared_ptr<const tensor::ModelWeights> source = source_;
    return out_.weights.add(name, *source_->find(name), [source, name] { return source->load(name); });
  }

  Status quantize_matrix(const Planned& planned, int64_t total) {
    TARE_TRY(check_interrupt("quantize"));
    const std::string name = planned.linear.name + ".weight";
    const int64_t n = planned.linear.n;
    const int64_t k = planned.linear.k;
    MatrixReport report{.name = planned.linear.name, .scheme = describe(planned.scheme)};
    if (planned.scheme.keep) {
      TARE_TRY(keep(name));
      report.bpw = 8.0 * static_cast<double>(source_->find(name)->stored_bytes) / static_cast<double>(n * k);
      report.status = "kept";
    } else {
      TARE_ASSIGN(const Weight weight, source_->load(name));
      TARE_ASSIGN(const std::vector<float> w, tensor::to_f32(weight));
      model::release_pages(weight);
      auto made = make(planned, w, report);
      if (!made.ok()) {
        Error error = std::move(made).error();
        error.where = name + (error.where.empty() ? "" : ", " + error.where);
        return error;
      }
      report.bpw = made->bits_per_weight();
      TARE_TRY(out_.weights.add(name, std::move(*made), planned.scheme.activation));
    }
    out_.matrices.push_back(report);
    if (options_.progress) options_.progress(report, static_cast<int64_t>(out_.matrices.size()), total);
    return {};
  }

  // Nearest codes, or GPTQ's where they are better; fills the report.
  Result<QuantizedTensor> make(const Planned& planned, const std::vector<float>& w, MatrixReport& report) {
    const int64_t n = planned.linear.n;
    const int64_t k = planned.linear.k;
    TARE_ASSIGN(const ChosenGrid grid, ChosenGrid::choose(planned.scheme.grid, w.data(), n, k, pool_));
    std::vector<uint8_t> codes(w.size());
    pool_.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) grid.encode_row(row, w.data() + row * k, codes.data() + row * k);
    });
    TARE_ASSIGN(QuantizedTensor nearest, grid.finish(codes, "tare"));
    report.status = "rtn";
    std::vector<float> decoded = decode(nearest);
    const auto gram = grams_.find(planned.linear.name);
    if (gram == grams_.end()) {
      report.error = report.error_rtn = relative_error(w.data(), decoded.data(), n, k, pool_);
      return nearest;
    }
    const Gram& g = *gram->second;
    report.tokens = g.tokens();
    TARE_ASSIGN(const double power, output_error(g, w.data(), n, products_));
    const auto error_of = [&](std::vector<float> value) -> Result<double> {
      for (size_t i = 0; i < value.size(); ++i) value[i] = w[i] - value[i];
      TARE_ASSIGN(const double error, output_error(g, value.data(), n, products_));
      return power > 0 ? error / power : 0.0;
    };
    TARE_ASSIGN(report.error_rtn, error_of(std::move(decoded)));
    report.error = report.error_rtn;
    if (planned.scheme.algorithm != "gptq") return nearest;
    TARE_ASSIGN(const GptqResult solved, gptq(grid, w.data(), g, {}, products_));
    if (solved.damping < 0) {
      report.status = "rtn (no activity that GPTQ could use)";
      return nearest;
    }
    TARE_ASSIGN(QuantizedTensor better, grid.finish(solved.codes, "tare"));
    TARE_ASSIGN(const double error, error_of(decode(better)));
    if (error > report.error_rtn) {
      report.status = "rtn (gptq was worse)";
      return nearest;
    }
    report.error = error;
    report.status = solved.dead_columns > 0 ? fmt::format("gptq ({} dead columns)", solved.dead_columns) : "gptq";
    return better;
  }

  std::vector<float> decode(const QuantizedTensor& weight) {
    std::vector<float> out(static_cast<size_t>(weight.n() * weight.k()));
    pool_.parallel_for(weight.n(), 16, [&](int64_t begin, int64_t end) {
      tensor::dequantize(weight, begin, end, out.data() + begin * weight.k());
    });
    return out;
  }

  // Embedding and head.
  Status add_tables() {
    TARE_ASSIGN(const bool tied, model::head_is_tied(*source_, arch_));
    if (options_.head == HeadChoice::kSource) return {};
    for (const std::string& name : {std::string(model::kEmbedding), std::string(model::kHead)}) {
      if (!source_->contains(name)) continue;
      const bool shared = tied && name == model::kEmbedding;
      TARE_ASSIGN(const Weight weight, source_->load(name));
      const WeightInfo& info = *source_->find(name);
      if (options_.head == HeadChoice::kInt8 || options_.head == HeadChoice::kInt8A8) {
        const GridSpec grid{.bits = 8, .group_size = 0, .scale_dtype = DType::kF32};
        TARE_ASSIGN(const std::vector<float> w, tensor::to_f32(weight));
        TARE_ASSIGN(QuantizedTensor made,
                    round_to_nearest(grid, w.data(), info.shape[0], info.shape[1], "tare", pool_));
        tensor::ActivationSpec activation;
        if (options_.head == HeadChoice::kInt8A8 && (shared || name == model::kHead)) {
          activation.type = tensor::ActivationType::kS8;
        }
        out_.substitutions.push_back(fmt::format("{}: {} becomes {}{}", name, form_name(info), describe(grid),
                                                 shared ? ", one table for embedding and head" : ""));
        TARE_TRY(out_.weights.add(name, std::move(made), activation));
        continue;
      }
      const DType dtype = options_.head == HeadChoice::kBF16  ? DType::kBF16
                          : options_.head == HeadChoice::kF16 ? DType::kF16
                                                              : DType::kF32;
      if (const DType* same = std::get_if<DType>(&info.form); same && *same == dtype) continue;
      TARE_ASSIGN(Tensor made, as_dtype(weight, dtype));
      out_.substitutions.push_back(
          fmt::format("{}: {} stored as {}", name, form_name(info), tensor::dtype_name(dtype)));
      TARE_TRY(out_.weights.add(name, std::move(made)));
    }
    return {};
  }

  std::shared_ptr<const tensor::ModelWeights> source_;
  const model::Architecture& arch_;
  const PipelineOptions& options_;
  ThreadPool& pool_;
  Products products_;
  GramTable grams_;
  Outcome out_;
  MemoryBudget::Reservation working_, result_;
};

}  // namespace

Result<HeadChoice> parse_head(std::string_view text) {
  std::string known;
  for (const auto& [name, head] : kHeads) {
    if (name == text) return head;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  return invalid_input("unknown choice", {.where = "--head", .expected = known, .found = fmt::format("'{}'", text)});
}

std::string_view head_name(HeadChoice head) {
  for (const auto& [name, value] : kHeads) {
    if (value == head) return name;
  }
  return "?";
}

double relative_error(const float* reference, const float* value, int64_t n, int64_t k, ThreadPool& pool) {
  std::vector<double> error(static_cast<size_t>(n)), power(static_cast<size_t>(n));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      double e = 0, p = 0;
      for (int64_t i = row * k; i < (row + 1) * k; ++i) {
        const double r = reference[i];
        const double d = r - static_cast<double>(value[i]);
        e += d * d;
        p += r * r;
      }
      error[static_cast<size_t>(row)] = e;
      power[static_cast<size_t>(row)] = p;
    }
  });
  double e = 0, p = 0;
  for (size_t row = 0; row < error.size(); ++row) {
    e += error[row];
    p += power[row];
  }
  return p == 0 ? (e == 0 ? 0 : 1) : e / p;
}

Result<Outcome> quantize_model(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
                               const PipelineOptions& options, ThreadPool& pool) {
  return Pipeline(std::move(source), arch, options, pool).run();
}

}  // namespace tare::quantize
