#include "checkpoints/gptq.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "checkpoints/gptq_config.h"
#include "checkpoints/gptq_planar.h"
#include "checkpoints/parts.h"
#include "numerics/packing.h"

namespace tare::checkpoints {

using numerics::packed_bytes;
using numerics::read_code;
using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

enum class ZeroForm { kV1, kV2 };

bool divides_word(int bits) {
  return bits == 2 || bits == 4 || bits == 8;
}

// A module as its file holds it. Shapes: qweight [K*b/32, N], qzeros [G, N*b/32], scales [G, N].
struct GptqTensors {
  std::string module;
  int bits = 4;
  int64_t n = 0, k = 0, group = 0, groups = 0;
  bool symmetric = true;
  bool planar = false;
  ZeroForm zero_form = ZeroForm::kV2;
  int64_t gptqmodel_version = 0;
  Tensor qweight, qzeros, scales;
  std::shared_ptr<const std::vector<int32_t>> group_of_k;
  int64_t bytes = 0;
};

Error untrusted_zero(const GptqTensors& m, int64_t group, int64_t channel) {
  return unsupported("GPTQ v1 zero point that two writers mean differently",
                     {.where = fmt::format("{}.qzeros, group {}, channel {}", m.module, group, channel),
                      .expected = "no true zero point of 0, or a file by gptqmodel 0.9.0 or later",
                      .found = "a stored field of all ones",
                      .hint = "write the checkpoint again as gptq_v2"});
}

// z[n, group] as bytes. v1 stores z - 1: for 2, 4 and 8 bits the shift was made on whole 32-bit words, so that a z of 0
// borrows from its neighbour, and adding back must be done on words too (docs/formats.md 1.6).
Result<std::vector<uint8_t>> unpack_zeros(const GptqTensors& m) {
  const int64_t words = m.n * m.bits / 32;
  const uint32_t ones = (1u << m.bits) - 1;
  const uint32_t word_shift = m.bits == 2 ? 0x55555555u : m.bits == 4 ? 0x11111111u : 0x01010101u;
  // Without a field of all ones no writer's zero was 0, and all of them agree.
  const bool trusted = m.gptqmodel_version >= (divides_word(m.bits) ? 9 : 7000);
  std::vector<uint8_t> out(static_cast<size_t>(m.n * m.groups));
  std::vector<uint32_t> row(static_cast<size_t>(words));
  std::vector<std::byte> stream(static_cast<size_t>(words) * 4);
  for (int64_t g = 0; g < m.groups; ++g) {
    for (int64_t w = 0; w < words; ++w) row[static_cast<size_t>(w)] = word_at(m.qzeros.data, g * words + w);
    const auto pack_stream = [&] {
      if (m.planar) {
        planar_to_stream(row.data(), m.n, m.bits, stream.data());
      } else {
        __builtin_memcpy(stream.data(), row.data(), stream.size());
      }
    };
    if (m.zero_form == ZeroForm::kV1) {
      pack_stream();
      for (int64_t n = 0; !trusted && n < m.n; ++n) {
        if (read_code(stream.data(), n * m.bits, m.bits) == ones) return untrusted_zero(m, g, n);
      }
      if (divides_word(m.bits)) {
        for (uint32_t& word : row) word += word_shift;
      }
    }
    pack_stream();
    const uint32_t field_shift = m.zero_form == ZeroForm::kV1 && !divides_word(m.bits) ? 1 : 0;
    for (int64_t n = 0; n < m.n; ++n) {
      const uint32_t field = read_code(stream.data(), n * m.bits, m.bits);
      out[static_cast<size_t>(n * m.groups + g)] = static_cast<uint8_t>((field + field_shift) & ones);
    }
  }
  return out;
}

Result<tensor::QuantizedTensor> build(const GptqTensors& m) {
  tensor::QuantizedFields f{.n = m.n, .k = m.k, .kind = tensor::CodeKind::kUint, .bits = m.bits};
  // A column of qweight is one stream of words along k, which is what a row of codes is: turn the matrix of words.
  const int64_t words = m.k * m.bits / 32;
  f.codes = transpose(m.qweight.data, words, m.n, 4);
  f.code_stride = words * 4;
  if (m.planar && !divides_word(m.bits)) {
    std::vector<std::byte> streams(f.codes.size());
    std::vector<uint32_t> row(static_cast<size_t>(words));
    for (int64_t n = 0; n < m.n; ++n) {
      for (int64_t w = 0; w < words; ++w) row[static_cast<size_t>(w)] = word_at(f.codes, n * words + w);
      planar_to_stream(row.data(), m.k, m.bits, streams.data() + n * words * 4);
    }
    f.codes = Buffer::own(std::move(streams));
  }
  const auto grid = [&](GridType type, Buffer values) {
    return m.group_of_k ? Grid::make_mapped(type, m.n, m.groups, 1, m.group, std::move(values))
                        : Grid::make(type, m.n, m.k, 1, m.group, std::move(values));
  };
  TARE_ASSIGN(f.a, grid(grid_type(m.scales.dtype), transpose(m.scales.data, m.groups, m.n, 2)));
  TARE_ASSIGN(std::vector<uint8_t> zeros, unpack_zeros(m));
  if (m.symmetric) {
    const uint8_t middle = static_cast<uint8_t>(1u << (m.bits - 1));
    for (size_t i = 0; i < zeros.size(); ++i) {
      if (zeros[i] == middle) continue;
      return invalid_input(
          "configuration and weights contradict each other",
          {.where = fmt::format("{}.qzeros, group {}, channel {}", m.module, static_cast<int64_t>(i) % m.groups,
                                static_cast<int64_t>(i) / m.groups),
           .expected = fmt::format("zero point {}, since the configuration says sym", middle),
           .found = fmt::format("{}", zeros[i])});
    }
    f.z = static_cast<float>(middle);
  } else {
    TARE_ASSIGN(Grid z, grid(GridType::kU8, Buffer::own(std::move(zeros))));
    f.z = std::move(z);
  }
  f.group_of_k = m.group_of_k;
  f.origin = {.format = "gptq", .bytes = m.bytes};
  return tensor::QuantizedTensor::make(std::move(f));
}

Status read_module(Source& source, const GptqConfig& config, const std::string& name, tensor::ModelWeights& out) {
  Parts parts(source, name);
  TARE_ASSIGN(const std::optional<GptqModule> settings, config.module(name));
  if (!settings)
    return parts.contradiction("qweight", "a dense weight, as a rule of `dynamic` says", "quantized codes");
  if (name == "lm_head" && !config.lm_head) {
    return parts.contradiction("qweight", "a dense weight, since lm_head is false in " + config.where,
                               "quantized codes");
  }
  GptqTensors m{.module = name, .bits = settings->bits, .symmetric = settings->symmetric};
  m.planar = config.layout == "gptq_p";
  m.zero_form = config.layout == "gptq" ? ZeroForm::kV1 : ZeroForm::kV2;
  m.gptqmodel_version = config.gptqmodel_version;
  if (!m.planar && !divides_word(m.bits) && m.bits != 3) {
    return unsupported("width that this layout does not have",
                       {.where = config.where, .expected = "2, 3, 4 or 8 bits", .found = fmt::format("{}", m.bits)});
  }
  TARE_ASSIGN(const tensor::Shape packed, parts.shape("qweight", 2));
  m.n = packed[1];
  if (parts.has("g_idx")) {
    TARE_ASSIGN(const tensor::Shape map, parts.shape("g_idx", 1));
    m.k = map[0];
  } else {
    m.k = packed[0] * 32 / m.bits;
  }
  if (m.k <= 0 || m.n <= 0 || m.k % 32 != 0 || m.n % 32 != 0 || packed[0] != m.k * m.bits / 32) {
    return parts.contradiction(
        "qweight",
        fmt::format("[{}, N] for {} columns of {} bits, both multiples of 32", m.k * m.bits / 32, m.k, m.bits),
        tensor::shape_text(packed));
  }
  m.group = settings->group_size == -1 ? m.k : std::min(settings->group_size, m.k);
  m.groups = ceil_div(m.k, m.group);
  TARE_ASSIGN(m.qweight, parts.take("qweight", {DType::kI32}, packed));
  TARE_ASSIGN(m.qzeros, parts.take("qzeros", {DType::kI32}, {m.groups, m.n * m.bits / 32}));
  TARE_ASSIGN(m.scales, parts.take("scales", kHalfFloats, {m.groups, m.n}));
  if (parts.has("g_idx")) {
    TARE_ASSIGN(const Tensor g_idx, parts.take("g_idx", {DType::kI32}, {m.k}));
    TARE_ASSIGN(m.group_of_k, group_map(g_idx, m.k, m.group, parts.name("g_idx")));
    if (m.group_of_k && !settings->desc_act) {
      return parts.contradiction("g_idx", "groups in order, since desc_act is false", "groups in another order");
    }
  } else if (settings->desc_act && m.groups > 1 && !config.static_groups) {
    return parts.contradiction("g_idx", "an order of groups, since desc_act is true", "no such tensor");
  }
  m.bytes = parts.bytes();

  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = m.bits, .group_size = m.group};
  spec.zero = m.symmetric ? tensor::ZeroKind::kConstant : tensor::ZeroKind::kInteger;
  spec.zero_constant = m.symmetric ? static_cast<float>(1u << (m.bits - 1)) : 0;
  spec.act_order = m.group_of_k != nullptr;
  const tensor::Shape shape{m.n, m.k};
  const int64_t bytes = m.bytes;
  return add_quantized(out, name + ".weight", shape, spec, {}, bytes, [m = std::move(m)] { return build(m); });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  if (!method || *method != json::value("gptq")) return Match::kNo;
  const auto config = GptqConfig::parse(source.quantization, source.quantization_where);
  // A configuration that does not parse is still GPTQ's: reading it gives the error.
  if (!config.ok()) return Match::kYes;
  return config->layout == "gptq" || config->layout == "gptq_v2" || config->layout == "gptq_p" ? Match::kYes
                                                                                               : Match::kNo;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const GptqConfig config, GptqConfig::parse(source.quantization, source.quantization_where));
  TARE_TRY(check_side_file(source, "quantize_config.json"));
  if (!json::find(source.quantization, "sym") && !json::find(source.quantization, "zero_point")) {
    source.notes.push_back("`sym` is absent from the GPTQ configuration: taken as true, and checked");
  }
  const std::vector<std::string> modules = modules_with(source.tensors, "qweight");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = source.quantization_where, .expected = "GPTQ tensors (qweight)", .found = "none"});
  }
  for (const std::string& name : modules) TARE_TRY(read_module(source, config, name, out));
  if (config.lm_head && !out.contains("lm_head.weight")) {
    return invalid_input(
        "configuration and weights contradict each other",
        {.where = config.where, .expected = "lm_head.qweight, since lm_head is true", .found = "none"});
  }
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat gptq_format() {
  return {
      .name = "gptq",
      .aliases = {"gptq_v2", "gptq_p"},
      .config_files = {"quantize_config.json"},
      .min_capability = 60,
      .activation_dtypes = {"float16"},
      .reads = "2, 3, 4, 8 bit (v1 and v2 zeros), 2..8 bit planar; symmetric or not, act-order, per-module overrides",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
