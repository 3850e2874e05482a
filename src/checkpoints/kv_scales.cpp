#include "checkpoints/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

namespace tare::checkpoints {

namespace {

struct Spelling {
  std::string_view suffix;                // after "...self_attn"
  std::array<std::string_view, 2> means;  // canonical last parts; the second may be empty
};

constexpr std::array<Spelling, 10> kSpellings = {{
    {".k_scale", {"k_scale", ""}},
    {".v_scale", {"v_scale", ""}},
    {".q_scale", {"q_scale", ""}},
    {".kv_scale", {"k_scale", "v_scale"}},       // deprecated
    {".k_proj.k_scale", {"k_scale", ""}},        // ModelOpt
    {".v_proj.v_scale", {"v_scale", ""}},        // ModelOpt
    {".k_proj.output_scale", {"k_scale", ""}},   // old compressed-tensors, Quark
    {".v_proj.output_scale", {"v_scale", ""}},   // old compressed-tensors, Quark
    {".q_proj.output_scale", {"q_scale", ""}},   // Quark
    {".prob_output_scale", {"prob_scale", ""}},  // Quark
}};

constexpr std::string_view kAttention = "self_attn";

Status check_scale(const tensor::Tensor& t, const std::string& name) {
  if (t.dtype != tensor::DType::kF32 && t.dtype != tensor::DType::kF16 && t.dtype != tensor::DType::kBF16) {
    return invalid_input("KV-cache scale has the wrong type",
                         {.where = name, .expected = "F32, F16 or BF16", .found = std::string(dtype_name(t.dtype))});
  }
  // [], [1], or one a head: [heads, 1, 1].
  const bool scalar = t.shape.empty() || t.shape == tensor::Shape{1};
  const bool per_head = t.rank() == 3 && t.shape[0] > 0 && t.shape[1] == 1 && t.shape[2] == 1;
  if (!scalar && !per_head) {
    return invalid_input("KV-cache scale has the wrong shape",
                         {.where = name, .expected = "[], [1] or [heads, 1, 1]", .found = tensor::shape_text(t.shape)});
  }
  TARE_ASSIGN(const std::vector<float> values, tensor::to_f32(t));
  for (const float value : values) {
    if (!(value > 0) || value > 3.0e38f) {
      return make_error(ErrorKind::kNotFinite, "bad KV-cache scale",
                        {.where = name, .expected = "a finite number above 0", .found = fmt::format("{}", value)});
    }
  }
  return {};
}

}  // namespace

Status take_kv_scales(Source& source, tensor::ModelWeights& out) {
  struct Found {
    std::string spelled;
    tensor::Tensor value;
  };
  std::map<std::string, Found> found;  // canonical name -> value
  for (const std::string& name : source.tensors.remaining()) {
    const size_t at = name.rfind(kAttention);
    if (at == name.npos) continue;
    const std::string_view rest = std::string_view(name).substr(at + kAttention.size());
    for (const Spelling& spelling : kSpellings) {
      if (rest != spelling.suffix) continue;
      TARE_ASSIGN(const tensor::Tensor t, source.tensors.take(name));
      TARE_TRY(check_scale(t, name));
      for (const std::string_view part : spelling.means) {
        if (part.empty()) continue;
        std::string canonical = fmt::format("{}.{}", name.substr(0, at + kAttention.size()), part);
        const auto [other, inserted] = found.emplace(canonical, Found{name, t});
        if (!inserted) {
          return invalid_input("one KV-cache scale under two names",
                               {.where = canonical, .found = other->second.spelled + " and " + name});
        }
      }
    }
  }
  std::vector<std::string> both;
  for (const auto& [canonical, entry] : found) {
    const std::string layer(parent_module(canonical));
    if (canonical.ends_with(".v_scale") && found.count(layer + ".k_scale") == 0) {
      return invalid_input("KV-cache scale without its partner",
                           {.where = entry.spelled, .expected = layer + ".k_scale beside it"});
    }
    if (canonical.ends_with(".k_scale") && found.count(layer + ".v_scale") == 0) both.push_back(layer);
  }
  // One name for both is a habit of some writers, for all layers; in one layer of many it is a lost tensor.
  const auto own = std::find_if(found.begin(), found.end(), [](const auto& one) {
    return one.first.ends_with(".v_scale") && !one.second.spelled.ends_with("kv_scale");
  });
  for (const std::string& layer : both) {
    if (own != found.end()) {
      return invalid_input("KV-cache scale without its partner", {.where = found.at(layer + ".k_scale").spelled,
                                                                  .expected = layer + ".v_scale beside it",
                                                                  .found = "v_scale in other layers only"});
    }
    source.notes.push_back(fmt::format("{}.k_scale is used for V too: there is no v_scale", layer));
    found.emplace(layer + ".v_scale", found.at(layer + ".k_scale"));
  }
  for (auto& [canonical, entry] : found) TARE_TRY(add_dense(out, canonical, entry.value));
  return {};
}

}  // namespace tare::checkpoints
