#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/version.h"
#include "checkpoints/affine.h"
#include "checkpoints/gptq.h"
#include "checkpoints/gptq_planar.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Tensor;

namespace {

enum class Layout { kV1, kV2, kPlanar };

std::string_view layout_name(Layout layout) {
  return layout == Layout::kV1 ? "gptq" : layout == Layout::kV2 ? "gptq_v2" : "gptq_p";
}

// Streams of `count` codes each, as words: [streams, count * bits / 32].
std::vector<uint32_t> pack_streams(const std::vector<uint8_t>& codes, int64_t streams, int64_t count, int bits,
                                   Layout layout) {
  const int64_t words = count * bits / 32;
  std::vector<uint32_t> out(static_cast<size_t>(streams * words));
  for (int64_t s = 0; s < streams; ++s) {
    const uint8_t* in = codes.data() + s * count;
    uint32_t* row = out.data() + s * words;
    if (layout == Layout::kPlanar) {
      codes_to_planar(in, count, bits, row);
      continue;
    }
    auto* bytes = reinterpret_cast<std::byte*>(row);
    for (int64_t i = 0; i < count; ++i) numerics::write_code(bytes, i * bits, bits, in[i]);
  }
  return out;
}

// Zero points as the layout can hold them: v1 stores z - 1, and a z of 0 is what two writers mean differently.
Result<std::vector<uint8_t>> storable_zeros(const AffineMatrix& m, Layout layout, const std::string& where,
                                            Losses& losses) {
  const int32_t lowest = layout == Layout::kV1 ? 1 : 0;
  const int32_t highest = (1 << m.bits) - 1;
  std::vector<uint8_t> out(static_cast<size_t>(m.groups * m.n));
  int64_t outside = 0;
  int32_t example = 0;
  for (int64_t g = 0; g < m.groups; ++g) {
    for (int64_t n = 0; n < m.n; ++n) {
      const int32_t zero = m.zero_at(n, g);
      const int32_t kept = std::clamp(zero, lowest, highest);
      if (kept != zero) {
        ++outside;
        example = zero;
      }
      out[static_cast<size_t>(g * m.n + n)] = static_cast<uint8_t>(kept);
    }
  }
  if (outside > 0) {
    TARE_TRY(losses.lose(where, fmt::format("{} zero points as {} outside {}..{} of {}; clipped", outside, example,
                                            lowest, highest, layout_name(layout))));
  }
  return out;
}

Result<StoredMatrix> store(const MatrixToStore& matrix, Losses& losses, Layout layout) {
  const std::string where = matrix.name();
  if (is_embedding(matrix.module)) return store_dense(matrix, "a quantized embedding table", losses);
  TARE_TRY(lose_activation(matrix, losses));
  TARE_ASSIGN(AffineMatrix m, affine_or_rounded(*matrix.weight, where, 4, 32, losses));
  const bool narrow = m.bits == 2 || m.bits == 3 || m.bits == 4 || m.bits == 8;
  if (m.bits < 2 || (layout != Layout::kPlanar && !narrow)) {
    return losses.refuse(where, fmt::format("{} bits: {} has 2, 3, 4 and 8", m.bits, layout_name(layout)));
  }
  if (m.n % 32 != 0 || m.k % 32 != 0) {
    return losses.refuse(where, fmt::format("[{}, {}]: both must be multiples of 32", m.n, m.k));
  }
  TARE_ASSIGN(std::vector<uint16_t> scales, half_scales(m, DType::kF16, where, losses));
  TARE_ASSIGN(const std::vector<uint8_t> zeros, storable_zeros(m, layout, where, losses));
  const int64_t words = m.k * m.bits / 32;
  std::vector<uint32_t> codes = transposed(pack_streams(m.codes, m.n, m.k, m.bits, layout), m.n, words);
  std::vector<uint8_t> stored_zeros = zeros;
  if (layout == Layout::kV1 && m.bits == 3) {
    for (uint8_t& z : stored_zeros) z = static_cast<uint8_t>(z - 1);
  }
  std::vector<uint32_t> packed_zeros = pack_streams(stored_zeros, m.groups, m.n, m.bits, layout);
  if (layout == Layout::kV1 && m.bits != 3) {
    // No zero is 0 here, so that nothing borrows and the shift of whole words is the shift of each field.
    const uint32_t shift = m.bits == 2 ? 0x55555555u : m.bits == 4 ? 0x11111111u : 0x01010101u;
    for (uint32_t& word : packed_zeros) word -= shift;
  }
  std::vector<int32_t> order = m.group_of_k;
  if (order.empty()) {
    for (int64_t i = 0; i < m.k; ++i) order.push_back(static_cast<int32_t>(i / m.group));
  }
  StoredMatrix out;
  const auto add = [&](std::string_view suffix, Result<Tensor> tensor) -> Status {
    return out.add(matrix, suffix, std::move(tensor));
  };
  TARE_TRY(add("g_idx", Tensor::make(DType::kI32, {m.k}, Buffer::own(std::move(order)))));
  TARE_TRY(add("scales", Tensor::make(DType::kF16, {m.groups, m.n}, Buffer::own(transposed(scales, m.n, m.groups)))));
  TARE_TRY(add("qweight", Tensor::make(DType::kI32, {words, m.n}, Buffer::own(std::move(codes)))));
  TARE_TRY(
      add("qzeros", Tensor::make(DType::kI32, {m.groups, m.n * m.bits / 32}, Buffer::own(std::move(packed_zeros)))));
  out.scheme = {{"bits", m.bits},
                {"group_size", m.groups == 1 ? int64_t{-1} : m.group},
                {"sym", m.symmetric()},
                {"desc_act", !m.group_of_k.empty()},
                {"columns", m.k}};
  return out;
}

std::string escaped(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '.') out += '\\';
    out += c;
  }
  return out + "$";
}

// Settings of a module beside those of the whole file.
json::object difference(const json::object& module, const json::object& base) {
  json::object out;
  const int64_t group = base.at("group_size").to_number<int64_t>();
  const int64_t columns = module.at("columns").to_number<int64_t>();
  for (const char* key : {"bits", "group_size", "sym"}) {
    if (module.at(key) == base.at(key)) continue;
    // One group over all columns is what a larger group size means too.
    if (std::string_view(key) == "group_size" && module.at(key) == json::value(int64_t{-1}) && group >= columns)
      continue;
    out[key] = module.at(key);
  }
  return out;
}

Result<json::object> configuration(const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                                   Layout layout) {
  // The settings that most modules have are those of the file.
  std::map<std::string, std::pair<int64_t, const json::object*>> counts;
  bool act_order = false, head = false;
  for (const WrittenModule& module : modules) {
    json::object key = module.scheme;
    key.erase("columns");
    key.erase("desc_act");
    auto& [count, example] = counts[boost::json::serialize(key)];
    ++count;
    // A group size says more than "all columns".
    if (!example) example = &module.scheme;
    act_order = act_order || module.scheme.at("desc_act") == json::value(true);
    head = head || module.module == "lm_head";
  }
  const json::object* base = nullptr;
  int64_t most = 0;
  for (const auto& [text, entry] : counts) {
    if (entry.first <= most) continue;
    most = entry.first;
    base = entry.second;
  }
  json::object dynamic;
  for (const WrittenModule& module : modules) {
    json::object other = difference(module.scheme, *base);
    // Loaders add settings of their own for a quantized head unless a rule names it.
    if (module.module == "lm_head")
      other = {{"bits", module.scheme.at("bits")},
               {"group_size", module.scheme.at("group_size")},
               {"sym", module.scheme.at("sym")}};
    if (!other.empty()) dynamic["+:" + escaped(module.module)] = std::move(other);
  }
  for (const std::string& name : dense) {
    if (is_embedding(name) || name == "lm_head") continue;
    dynamic["-:" + escaped(name)] = json::object();
  }
  json::object out{{"quant_method", "gptq"},
                   {"bits", base->at("bits")},
                   {"group_size", base->at("group_size")},
                   {"desc_act", act_order},
                   {"sym", base->at("sym")},
                   {"lm_head", head},
                   {"true_sequential", true},
                   {"damp_percent", 0.01},
                   // Twice, as GPTQModel does: a file that lost one of them would read its zeros one too low.
                   {"checkpoint_format", layout_name(layout)},
                   {"format", layout_name(layout)},
                   {"pack_dtype", "int32"},
                   {"meta", {{"quantizer", json::array{fmt::format("tare:{}", kVersion)}}}}};
  if (!dynamic.empty()) out["dynamic"] = std::move(dynamic);
  return out;
}

template <Layout layout>
CheckpointWriter writer(std::string_view name, std::string_view writes) {
  return {.name = name,
          .writes = writes,
          .mixed = {.held = true, .joined_alike = true, .bits = {2, 3, 4, 8}},
          .store = [](const MatrixToStore& matrix, Losses& losses) { return store(matrix, losses, layout); },
          .configuration = [](const std::vector<WrittenModule>& modules, const std::vector<std::string>& dense,
                              const WriteRequest&) { return configuration(modules, dense, layout); },
          .config_file = "quantize_config.json"};
}

}  // namespace

CheckpointWriter gptq_writer() {
  return writer<Layout::kV1>("gptq",
                             "2, 3, 4, 8 bit with act-order and per-module settings; zeros v1 (z - 1, no z of 0)");
}

CheckpointWriter gptq_v2_writer() {
  return writer<Layout::kV2>("gptq_v2", "the same with zeros as they are");
}

CheckpointWriter gptq_planar_writer() {
  return writer<Layout::kPlanar>("gptq_p", "2..8 bit, planar");
}

}  // namespace tare::checkpoints
