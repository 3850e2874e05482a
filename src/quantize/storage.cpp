#include "quantize/storage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tare::quantize {

using io::TensorDeclaration;
using tensor::QuantizedTensor;

namespace {

constexpr int kWidths[] = {3, 4, 5, 6, 8};
constexpr int64_t kGroups[] = {32, 64, 128, -1};
constexpr int kWidestWithZeros = 4;  // wider codes gain nothing from a zero that costs as much as a code
constexpr int64_t kRows = 32;        // of a made-up matrix

// Weights of no meaning with both signs in every group.
std::vector<float> made_up(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& v : out) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) * 0x1p-23f;
  }
  return out;
}

}  // namespace

std::vector<MatrixScheme> candidate_schemes(const Recipe& recipe, const SchemeFlags& flags,
                                            const std::vector<int>& widths) {
  std::vector<MatrixScheme> out;
  const auto base = parse_scheme(flags.scheme.empty() ? recipe.scheme : flags.scheme);
  if (!base.ok()) return out;
  for (const int bits : kWidths) {
    if (std::find(widths.begin(), widths.end(), bits) == widths.end()) continue;
    if (flags.bits && *flags.bits != bits) continue;
    for (const int64_t group : kGroups) {
      if (flags.group_size && group != kGroups[0]) continue;  // one size was asked for, whatever it is
      for (const bool zeros : {false, true}) {
        SchemeFlags one = flags;
        one.bits.reset();
        SchemeWidths w = *base;
        w.weight = bits;
        one.scheme = describe(w);
        if (!flags.group_size) one.group_size = group;
        const auto add = [&] {
          const auto scheme = resolve_scheme(recipe, one);
          if (scheme.ok() && std::find(out.begin(), out.end(), *scheme) == out.end()) out.push_back(*scheme);
          return scheme.ok() && scheme->grid.kind == GridKind::kInteger;
        };
        // Where nothing is said of zeros and the grid is one that has the choice, both are tried.
        const auto probe = resolve_scheme(recipe, one);
        if (probe.ok() && probe->grid.kind == GridKind::kInteger && !flags.symmetric) {
          if (zeros && bits > kWidestWithZeros) continue;
          one.symmetric = !zeros;
        }
        // 8-bit rows have f32 scales, which cost a group too much and which some formats do not have.
        if (add() && bits == 8 && flags.scale_dtype.empty()) {
          one.scale_dtype = "float16";
          add();
        }
      }
    }
  }
  return out;
}

Result<Storage::Stored> Storage::make(int64_t n, int64_t k, const MatrixScheme& scheme) {
  // Shapes grow evenly with rows, 32 at a time, so two small matrices tell those of a large one.
  const bool grows = n % kRows == 0 && n > 2 * kRows;
  Stored out;
  std::vector<std::vector<TensorDeclaration>> sizes;
  for (const int64_t rows : grows ? std::vector<int64_t>{kRows, 2 * kRows} : std::vector<int64_t>{n}) {
    const std::vector<float> w = made_up(rows * k);
    TARE_ASSIGN(const QuantizedTensor weight, round_to_nearest(scheme.grid, w.data(), rows, k, "tare", *pool_));
    out.spec = weight.spec();
    checkpoints::Losses losses(std::string(writer_->name), allow_loss_);
    TARE_ASSIGN(
        const checkpoints::StoredMatrix stored,
        writer_->store({.module = "M", .weight = &weight, .activation = scheme.activation, .config = config_}, losses));
    if (stored.dense || !losses.list().empty()) {
      return unsupported("format does not hold the form",
                         {.where = std::string(writer_->name), .found = describe(scheme)});
    }
    std::vector<TensorDeclaration>& tensors = sizes.emplace_back();
    for (const checkpoints::StoredPart& part : stored.parts) {
      tensors.push_back({part.name, part.tensor.dtype, part.tensor.shape});
    }
  }
  out.tensors = sizes.front();
  if (!grows) return out;
  for (size_t t = 0; t < out.tensors.size(); ++t) {
    for (size_t d = 0; d < out.tensors[t].shape.size(); ++d) {
      int64_t& size = out.tensors[t].shape[d];
      size += (sizes[1][t].shape[d] - size) * (n / kRows - 1);
    }
  }
  return out;
}

Result<const Storage::Stored*> Storage::stored(int64_t n, int64_t k, const MatrixScheme& scheme) {
  if (!writer_->store) return unsupported("format holds dense weights only", {.where = std::string(writer_->name)});
  const GridSpec& g = scheme.grid;
  const std::string key =
      fmt::format("{} {} {} {} {} {} {} {}", n, k, describe(scheme), static_cast<int>(g.kind), g.bits, g.group_size,
                  tensor::dtype_name(g.scale_dtype), static_cast<int>(g.scale_rule));
  auto at = known_.find(key);
  if (at == known_.end()) at = known_.emplace(key, make(n, k, scheme)).first;
  if (!at->second.ok()) {
    Error error = at->second.error();
    error.where.clear();  // names the made-up matrix
    return error;
  }
  return &*at->second;
}

Result<std::vector<TensorDeclaration>> Storage::tensors(const std::string& module, int64_t n, int64_t k,
                                                        const MatrixScheme& scheme) {
  TARE_ASSIGN(const Stored* made, stored(n, k, scheme));
  std::vector<TensorDeclaration> out = made->tensors;
  for (TensorDeclaration& t : out) t.name = module + t.name.substr(1);
  return out;
}

Result<std::vector<TensorDeclaration>> Storage::tensors(const tensor::ModelWeights& source,
                                                        const model::LayerLinear& linear, const MatrixScheme& scheme) {
  if (scheme.keep) return stored_tensors(source, linear.name + ".weight", *writer_, allow_loss_);
  return tensors(linear.name, linear.n, linear.k, scheme);
}

Result<const kernels::LinearKernel*> Storage::kernel(int64_t n, int64_t k, bool bias, const MatrixScheme& scheme) {
  TARE_ASSIGN(const Stored* made, stored(n, k, scheme));
  tensor::QuantSpec spec = made->spec;
  if (scheme.grid.per_tensor) spec.group_n = n;
  TARE_ASSIGN(const kernels::Selection selection,
              kernels::select_linear(
                  registry_, {.n = n, .k = k, .weight = spec, .activation = scheme.activation, .bias = bias}, caps_));
  return selection.kernel;
}

Result<std::vector<TensorDeclaration>> stored_tensors(const tensor::ModelWeights& weights, const std::string& name,
                                                      const checkpoints::CheckpointWriter& writer, bool allow_loss) {
  const tensor::WeightInfo& info = *weights.find(name);
  if (const auto* dtype = std::get_if<tensor::DType>(&info.form)) {
    return std::vector<TensorDeclaration>{{name, *dtype, info.shape}};
  }
  if (!writer.store) return unsupported("format holds dense weights only", {.where = name});
  TARE_ASSIGN(const tensor::Weight weight, weights.load(name));
  checkpoints::Losses losses(std::string(writer.name), allow_loss);
  TARE_ASSIGN(const checkpoints::StoredMatrix stored, writer.store({.module = name.substr(0, name.rfind('.')),
                                                                    .weight = &std::get<QuantizedTensor>(weight),
                                                                    .activation = info.activation,
                                                                    .config = &weights.config},
                                                                   losses));
  std::vector<TensorDeclaration> out;
  for (const checkpoints::StoredPart& part : stored.parts) {
    out.push_back({part.name, part.tensor.dtype, part.tensor.shape});
  }
  return out;
}

Result<int64_t> data_bytes(const std::vector<TensorDeclaration>& tensors) {
  int64_t total = 0;
  for (const TensorDeclaration& t : tensors) {
    TARE_ASSIGN(const int64_t count, tensor::element_count(t.shape));
    total += count * tensor::dtype_bits(t.dtype) / 8;
  }
  return total;
}

Result<int64_t> bytes_with_entries(const std::vector<TensorDeclaration>& tensors, int64_t file_bytes) {
  const auto digits = static_cast<int64_t>(fmt::format("{}", file_bytes).size());
  TARE_ASSIGN(int64_t total, data_bytes(tensors));
  for (const TensorDeclaration& t : tensors) {
    const std::string entry = fmt::format(",\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[,]}}", t.name,
                                          tensor::dtype_name(t.dtype), fmt::join(t.shape, ","));
    total += static_cast<int64_t>(entry.size()) + 2 * digits;
  }
  return total;
}

}  // namespace tare::quantize
