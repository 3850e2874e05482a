#include "checkpoints/awq.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/checked.h"
#include "checkpoints/gptq_config.h"
#include "checkpoints/marlin.h"
#include "checkpoints/parts.h"

namespace tare::checkpoints {

using tensor::DType;
using tensor::Grid;
using tensor::GridType;
using tensor::Tensor;

namespace {

struct AwqConfig {
  int64_t group_size = 128;
  bool zero_point = true;
  std::string version = "gemm";
  std::vector<std::string> dense_modules;
};

Result<AwqConfig> parse(const json::object& q, std::string_view where) {
  AwqConfig out;
  TARE_ASSIGN(const int64_t bits, json::get_int_or(q, json::find(q, "bits") ? "bits" : "w_bit", 4, where));
  if (bits != 4) {
    return unsupported("AWQ of this width",
                       {.where = std::string(where), .expected = "4 bits", .found = fmt::format("{}", bits)});
  }
  TARE_ASSIGN(out.group_size,
              json::get_int_or(q, json::find(q, "group_size") ? "group_size" : "q_group_size", 128, where));
  if (out.group_size != -1 && out.group_size < 1) {
    return invalid_input("bad 'group_size' in the quantization configuration",
                         {.where = std::string(where), .found = fmt::format("{}", out.group_size)});
  }
  TARE_ASSIGN(out.zero_point, json::get_bool_or(q, "zero_point", true, where));
  TARE_ASSIGN(out.version, json::get_string_or(q, "version", "gemm", where));
  std::transform(out.version.begin(), out.version.end(), out.version.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (const json::value* list = json::find(q, "modules_to_not_convert")) {
    if (!list->is_array()) return invalid_input("'modules_to_not_convert' is no list", {.where = std::string(where)});
    for (const json::value& entry : list->get_array()) {
      if (!entry.is_string()) {
        return invalid_input("'modules_to_not_convert' holds something else than names", {.where = std::string(where)});
      }
      out.dense_modules.emplace_back(entry.get_string());
    }
  }
  return out;
}

// Nibble of channel 8c + j in word c of the gemm layout.
constexpr std::array<int, 8> kNibbleOf = {0, 4, 1, 5, 2, 6, 3, 7};

// [K, N/8] words with channels interleaved -> rows of nibbles along k.
Buffer gemm_codes(const Buffer& qweight, int64_t n, int64_t k) {
  const int64_t words = n / 8;
  const int64_t stride = (k + 1) / 2;
  std::vector<uint8_t> out(static_cast<size_t>(n * stride));
  for (int64_t k0 = 0; k0 < k; k0 += 8) {
    const int64_t rows = std::min<int64_t>(8, k - k0);
    for (int64_t c = 0; c < words; ++c) {
      uint32_t word[8] = {};
      for (int64_t i = 0; i < rows; ++i) word[i] = word_at(qweight, (k0 + i) * words + c);
      for (int64_t j = 0; j < 8; ++j) {
        const int shift = 4 * kNibbleOf[static_cast<size_t>(j)];
        uint8_t* row = out.data() + (8 * c + j) * stride + k0 / 2;
        for (int64_t i = 0; i < rows; i += 2) {
          row[i / 2] = static_cast<uint8_t>(((word[i] >> shift) & 15) | ((word[i + 1] >> shift) & 15) << 4);
        }
      }
    }
  }
  return Buffer::own(std::move(out));
}

struct AwqTensors {
  std::string module;
  int64_t n = 0, k = 0, group = 0, groups = 0;
  int64_t stored_groups = 0;  // gemv: padded
  bool zero_point = true;
  Tensor qweight, qzeros, scales;
  int64_t bytes = 0;
};

tensor::QuantizedFields start(const AwqTensors& m) {
  tensor::QuantizedFields f{.n = m.n, .k = m.k, .kind = tensor::CodeKind::kUint, .bits = 4};
  f.origin = {.format = "awq", .bytes = m.bytes};
  return f;
}

Status set_zeros(const AwqTensors& m, std::vector<uint8_t> zeros, tensor::QuantizedFields& f) {
  if (m.zero_point) {
    TARE_ASSIGN(Grid z, Grid::make(GridType::kU8, m.n, m.k, 1, m.group, Buffer::own(std::move(zeros))));
    f.z = std::move(z);
    return {};
  }
  const auto odd = std::find_if(zeros.begin(), zeros.end(), [](uint8_t z) { return z != 8; });
  if (odd != zeros.end()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = m.module + ".qzeros",
                          .expected = "zero point 8, since zero_point is false",
                          .found = fmt::format("{}", *odd)});
  }
  f.z = 8.0f;
  return {};
}

Result<tensor::QuantizedTensor> build_gemm(const AwqTensors& m) {
  tensor::QuantizedFields f = start(m);
  f.codes = gemm_codes(m.qweight.data, m.n, m.k);
  TARE_ASSIGN(f.a,
              Grid::make(grid_type(m.scales.dtype), m.n, m.k, 1, m.group, transpose(m.scales.data, m.groups, m.n, 2)));
  std::vector<uint8_t> zeros(static_cast<size_t>(m.n * m.groups));
  for (int64_t g = 0; g < m.groups; ++g) {
    for (int64_t n = 0; n < m.n; ++n) {
      const uint32_t word = word_at(m.qzeros.data, g * (m.n / 8) + n / 8);
      zeros[static_cast<size_t>(n * m.groups + g)] =
          static_cast<uint8_t>((word >> 4 * kNibbleOf[static_cast<size_t>(n % 8)]) & 15);
    }
  }
  TARE_TRY(set_zeros(m, std::move(zeros), f));
  return tensor::QuantizedTensor::make(std::move(f));
}

// First `groups` of each row of `stored` 16-bit numbers.
Buffer cut_columns(const Buffer& data, int64_t rows, int64_t stored, int64_t groups) {
  std::vector<uint16_t> out(static_cast<size_t>(rows * groups));
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_memcpy(out.data() + r * groups, data.data() + r * stored * 2, static_cast<size_t>(groups) * 2);
  }
  return Buffer::own(std::move(out));
}

// The writer fills the room behind the last group with zeros: anything else there are groups that the configuration
// does not know.
Status check_padding(const AwqTensors& m) {
  for (int64_t r = 0; r < m.n; ++r) {
    for (int64_t g = m.groups; g < m.stored_groups; ++g) {
      uint16_t value;
      __builtin_memcpy(&value, m.scales.data.data() + (r * m.stored_groups + g) * 2, 2);
      if (value == 0) continue;
      return invalid_input("configuration and weights contradict each other",
                           {.where = m.module + ".scales",
                            .expected = fmt::format("{} groups of {}, then zeros", m.groups, m.group),
                            .found = fmt::format("a scale for group {}", g)});
    }
  }
  return {};
}

Result<tensor::QuantizedTensor> build_gemv(const AwqTensors& m) {
  TARE_TRY(check_padding(m));
  tensor::QuantizedFields f = start(m);
  f.codes = m.qweight.data;  // natural order already
  f.code_stride = m.k / 2;
  TARE_ASSIGN(f.a, Grid::make(grid_type(m.scales.dtype), m.n, m.k, 1, m.group,
                              cut_columns(m.scales.data, m.n, m.stored_groups, m.groups)));
  std::vector<uint8_t> zeros(static_cast<size_t>(m.n * m.groups));
  for (int64_t n = 0; n < m.n; ++n) {
    for (int64_t g = 0; g < m.groups; ++g) {
      const uint32_t word = word_at(m.qzeros.data, n * (m.stored_groups / 8) + g / 8);
      zeros[static_cast<size_t>(n * m.groups + g)] = static_cast<uint8_t>((word >> 4 * (g % 8)) & 15);
    }
  }
  TARE_TRY(set_zeros(m, std::move(zeros), f));
  return tensor::QuantizedTensor::make(std::move(f));
}

// int16 [N/4, K]: four rows and 64 columns share 64 words of four nibbles.
Result<tensor::QuantizedTensor> build_gemv_fast(const AwqTensors& m) {
  tensor::QuantizedFields f = start(m);
  std::vector<uint8_t> codes(static_cast<size_t>(m.n * m.k / 2));
  for (int64_t n = 0; n < m.n; ++n) {
    for (int64_t k = 0; k < m.k; ++k) {
      const int64_t column = k / 64 * 64 + n % 4 * 16 + k / 32 % 2 * 8 + k % 8;
      uint16_t word;
      __builtin_memcpy(&word, m.qweight.data.data() + (n / 4 * m.k + column) * 2, 2);
      const int code = (word >> 4 * (k / 8 % 4)) & 15;
      codes[static_cast<size_t>((n * m.k + k) / 2)] |= static_cast<uint8_t>(code << 4 * (k % 2));
    }
  }
  f.codes = Buffer::own(std::move(codes));
  // Scales and -(scale * zero) stand one row a group, padded.
  const Buffer scales = transpose(m.scales.data, m.stored_groups, m.n, 2);
  const Buffer minima = transpose(m.qzeros.data, m.stored_groups, m.n, 2);
  TARE_ASSIGN(f.a, Grid::make(grid_type(m.scales.dtype), m.n, m.k, 1, m.group,
                              cut_columns(scales, m.n, m.stored_groups, m.groups)));
  TARE_ASSIGN(f.b, Grid::make(grid_type(m.qzeros.dtype), m.n, m.k, 1, m.group,
                              cut_columns(minima, m.n, m.stored_groups, m.groups)));
  return tensor::QuantizedTensor::make(std::move(f));
}

// Columns of qzeros in the gemv layouts: room for whole words, more of them for small groups.
int64_t padded_words(int64_t groups, int64_t group) {
  return round_up(ceil_div(groups, 8), group >= 128 ? 1 : group == 64 ? 2 : 4);
}

Status resolve_groups(const Parts& parts, const AwqConfig& config, AwqTensors& m) {
  m.group = config.group_size == -1 ? m.k : config.group_size;
  if (m.k < 1 || m.n < 1 || m.k % m.group != 0) {
    return parts.contradiction("qweight", fmt::format("columns in whole groups of {}", m.group),
                               fmt::format("{}", m.k));
  }
  m.groups = m.k / m.group;
  return {};
}

Status read_module(Source& source, const AwqConfig& config, const std::string& name, tensor::ModelWeights& out) {
  Parts parts(source, name);
  const std::string dotted = "." + name + ".";
  for (const std::string& dense : config.dense_modules) {
    if (dotted.find("." + dense + ".") != dotted.npos) {
      return parts.contradiction("qweight", "a dense weight, as modules_to_not_convert says", "quantized codes");
    }
  }
  AwqTensors m{.module = name, .zero_point = config.zero_point};
  TARE_ASSIGN(const tensor::Shape packed, parts.shape("qweight", 2));
  tensor::QuantSpec spec{.kind = tensor::CodeKind::kUint, .bits = 4};
  Result<tensor::QuantizedTensor> (*build)(const AwqTensors&) = nullptr;
  if (config.version == "gemv") {
    m.n = packed[0];
    m.k = packed[1] * 8;
    TARE_TRY(resolve_groups(parts, config, m));
    m.stored_groups = 8 * padded_words(m.groups, m.group);
    TARE_ASSIGN(m.qweight, parts.take("qweight", {DType::kI32}, packed));
    TARE_ASSIGN(m.qzeros, parts.take("qzeros", {DType::kI32}, {m.n, m.stored_groups / 8}));
    TARE_ASSIGN(m.scales, parts.take("scales", kHalfFloats, {m.n, m.stored_groups}));
    build = build_gemv;
  } else if (config.version == "gemv_fast") {
    m.n = packed[0] * 4;
    m.k = packed[1];
    TARE_TRY(resolve_groups(parts, config, m));
    if (m.k % 64 != 0) return parts.contradiction("qweight", "columns in runs of 64", tensor::shape_text(packed));
    m.stored_groups = 8 * padded_words(m.groups, m.group);
    TARE_ASSIGN(m.qweight, parts.take("qweight", {DType::kI16}, packed));
    const std::string_view zeros = parts.has("scaled_zeros") ? "scaled_zeros" : "qzeros";
    TARE_ASSIGN(m.qzeros, parts.take(zeros, kHalfFloats, {m.stored_groups, m.n}));
    TARE_ASSIGN(m.scales, parts.take("scales", kHalfFloats, {m.stored_groups, m.n}));
    build = build_gemv_fast;
  } else {
    m.n = packed[1] * 8;
    m.k = packed[0];
    TARE_TRY(resolve_groups(parts, config, m));
    TARE_ASSIGN(m.qweight, parts.take("qweight", {DType::kI32}, packed));
    TARE_ASSIGN(m.qzeros, parts.take("qzeros", {DType::kI32}, {m.groups, m.n / 8}));
    TARE_ASSIGN(m.scales, parts.take("scales", kHalfFloats, {m.groups, m.n}));
    build = build_gemm;
  }
  m.bytes = parts.bytes();
  spec.group_size = m.group;
  if (config.version == "gemv_fast") {
    spec.has_min = true;
  } else {
    spec.zero = m.zero_point ? tensor::ZeroKind::kInteger : tensor::ZeroKind::kConstant;
    spec.zero_constant = m.zero_point ? 0 : 8;
  }
  const tensor::Shape shape{m.n, m.k};
  const int64_t bytes = m.bytes;
  return add_quantized(out, name + ".weight", shape, spec, {}, bytes, [m = std::move(m), build] { return build(m); });
}

Match detect(const Source& source) {
  const json::value* method = json::find(source.quantization, "quant_method");
  if (!method || *method != json::value("awq")) return Match::kNo;
  return Match::kYes;
}

Status read(Source& source, const LoadOptions&, tensor::ModelWeights& out) {
  TARE_ASSIGN(const AwqConfig config, parse(source.quantization, source.quantization_where));
  TARE_TRY(check_side_file(source, "quantize_config.json"));
  TARE_TRY(check_side_file(source, "quant_config.json"));
  // exllama and ipex are kernels that read gemm files.
  constexpr std::array<std::string_view, 6> kVersions = {"gemm", "exllama", "ipex", "gemv", "gemv_fast", "marlin"};
  if (std::find(kVersions.begin(), kVersions.end(), config.version) == kVersions.end()) {
    return unsupported(
        "AWQ layout that tare does not read",
        {.where = source.quantization_where, .expected = "gemm, gemv, gemv_fast or marlin", .found = config.version});
  }
  const std::vector<std::string> modules = modules_with(source.tensors, "qweight");
  if (modules.empty()) {
    return invalid_input("configuration and weights contradict each other",
                         {.where = source.quantization_where, .expected = "AWQ tensors (qweight)", .found = "none"});
  }
  for (const std::string& name : modules) {
    if (config.version != "marlin") {
      TARE_TRY(read_module(source, config, name, out));
      continue;
    }
    Parts parts(source, name);
    if (config.zero_point) {
      return parts.contradiction("qweight", "no zero points in the marlin layout", "zero_point true");
    }
    TARE_TRY(read_marlin(parts, "qweight", "scales", config.group_size, "awq marlin", out));
  }
  return take_dense_rest(source, out);
}

}  // namespace

CheckpointFormat awq_format() {
  return {
      .name = "awq",
      .config_files = {"quant_config.json", "quantize_config.json"},
      .min_capability = 75,
      .activation_dtypes = {"float16"},
      .reads = "4 bit: gemm, gemv, gemv_fast (llm-awq v2), marlin",
      .detect = detect,
      .read = read,
  };
}

}  // namespace tare::checkpoints
