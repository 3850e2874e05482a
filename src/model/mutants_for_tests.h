#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/ggml_types.h"
#include "io/gguf.h"
#include "tensor/tensor.h"
#include "testing/container_bytes.h"

// Damage for the mutation test: safetensors, config.json and GGUF files, changed one thing at a time.
namespace tare::model::mutants {

using testing::bytes_of;
using testing::gguf_string;

// ---- safetensors

struct Entry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string data;
};

struct Shard {
  json::object metadata;
  std::vector<Entry> entries;
};

inline Shard parse_shard(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const json::object header = json::parse(std::string_view(bytes).substr(8, length), "header").value().as_object();
  Shard out;
  for (const auto& [name, value] : header) {
    if (name == "__metadata__") {
      out.metadata = value.as_object();
      continue;
    }
    const json::object& entry = value.as_object();
    const int64_t begin = *json::as_int(entry.at("data_offsets").at(0));
    const int64_t end = *json::as_int(entry.at("data_offsets").at(1));
    Entry one{.name = name, .dtype = std::string(entry.at("dtype").as_string())};
    for (const auto& extent : entry.at("shape").as_array()) one.shape.push_back(*json::as_int(extent));
    one.data = bytes.substr(8 + length + static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    out.entries.push_back(std::move(one));
  }
  return out;
}

inline std::string shard_bytes(const Shard& shard, const std::function<void(std::string&)>& edit_header = {}) {
  json::object header;
  if (!shard.metadata.empty()) header["__metadata__"] = shard.metadata;
  std::string data;
  for (const Entry& entry : shard.entries) {
    json::object one;
    one["dtype"] = entry.dtype;
    one["shape"] = json::array(entry.shape.begin(), entry.shape.end());
    one["data_offsets"] = json::array{data.size(), data.size() + entry.data.size()};
    header[entry.name] = std::move(one);
    data += entry.data;
  }
  std::string text = boost::json::serialize(header);
  if (edit_header) edit_header(text);
  return testing::safetensors_bytes(text, data);
}

inline size_t width_of(const std::string& dtype) {
  const auto parsed = tensor::parse_dtype(dtype);
  return parsed.ok() ? static_cast<size_t>(tensor::dtype_bits(*parsed)) / 8 : 1;
}

// ---- one mutant: the files that differ from the original

struct Mutant {
  std::string what;
  std::map<std::string, std::string> files;  // name -> bytes; an empty name is never used
};

using Random = std::mt19937;

inline size_t pick(Random& random, size_t count) {
  return random() % count;
}

// ---- changes of one tensor, shared by both containers through Entry

// NaN in the first element of a float tensor.
inline bool poison(Entry& entry, Random& random) {
  static const std::map<std::string, std::string> kNan = {{"F32", bytes_of<uint32_t>(0x7fc00000)},
                                                          {"F16", bytes_of<uint16_t>(0x7e00)},
                                                          {"BF16", bytes_of<uint16_t>(0x7fc0)},
                                                          {"F8_E4M3", bytes_of<uint8_t>(0x7f)}};
  const auto found = kNan.find(entry.dtype);
  if (found == kNan.end() || entry.data.empty()) return false;
  const size_t at = pick(random, entry.data.size() / found->second.size()) * found->second.size();
  entry.data.replace(at, found->second.size(), found->second);
  return true;
}

// Another type of the same width over the same bytes, or of another width over as many elements. Between float types of
// different width the file cannot tell: both are legitimate, and the bytes here would be legitimate numbers.
inline std::string retype(Entry& entry, Random& random, bool same_width) {
  static const std::vector<std::string> kFloats = {"F32", "F16", "BF16"};
  const auto is_float = [](const std::string& type) {
    return std::find(kFloats.begin(), kFloats.end(), type) != kFloats.end();
  };
  static const std::vector<std::string> kTypes = {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64",
                                                  "I32", "I16", "I8",   "U8",      "BOOL"};
  std::vector<std::string> choice;
  for (const std::string& type : kTypes) {
    if (type == entry.dtype || (width_of(type) == width_of(entry.dtype)) != same_width) continue;
    if (same_width || !is_float(type) || !is_float(entry.dtype)) choice.push_back(type);
  }
  if (choice.empty()) return {};
  const std::string type = choice[pick(random, choice.size())];
  entry.data.resize(entry.data.size() / width_of(entry.dtype) * width_of(type), 1);
  entry.dtype = type;
  return type;
}

inline bool reshape(Entry& entry, Random& random) {
  std::vector<std::vector<int64_t>> choice;
  const std::vector<int64_t>& s = entry.shape;
  if (s.size() == 2) {
    choice = {{s[1], s[0]}, {s[0] * s[1]}, {s[0], s[1], 1}, {1, s[0], s[1]}};
    if (s[0] % 2 == 0) choice.push_back({s[0] / 2, s[1] * 2});
    if (s[1] % 2 == 0) choice.push_back({s[0] * 2, s[1] / 2});
  } else if (s.size() == 1) {
    choice = {{s[0], 1}, {1, s[0]}, {s[0], 1, 1}};
    if (s[0] % 2 == 0) choice.push_back({2, s[0] / 2});
  } else {
    choice = {{1}, {1, 1}};
  }
  const std::vector<int64_t> shape = choice[pick(random, choice.size())];
  if (shape == s) return false;
  entry.shape = shape;
  return true;
}

inline bool resize_rows(Entry& entry, int64_t by) {
  if (entry.shape.empty() || entry.shape[0] < 1 || entry.shape[0] + by < 0) return false;
  const size_t row = entry.data.size() / static_cast<size_t>(entry.shape[0]);
  if (by < 0) {
    entry.data.resize(entry.data.size() - row);
  } else {
    entry.data += entry.data.substr(0, row);
  }
  entry.shape[0] += by;
  return true;
}

inline void mutate_tensors(const Shard& original, Random& random, std::vector<Mutant>& out) {
  const auto emit = [&](const std::string& what, const Shard& shard) {
    out.push_back({.what = what, .files = {{"model.safetensors", shard_bytes(shard)}}});
  };
  for (int round = 0; round < 2; ++round) {
    for (int kind = 0; kind < 9; ++kind) {
      Shard shard = original;
      const size_t at = pick(random, shard.entries.size());
      Entry& entry = shard.entries[at];
      const std::string name = entry.name;
      if (kind == 0) {
        shard.entries.erase(shard.entries.begin() + static_cast<ptrdiff_t>(at));
        emit("removed " + name, shard);
      } else if (kind == 1) {
        entry.name = round == 0 ? name + "_x" : round == 1 ? "x." + name : name.substr(0, name.size() - 1);
        emit("renamed " + name, shard);
      } else if (kind == 2) {
        Entry copy = entry;
        copy.name = round == 0 ? "copy." + name : "model.layers.7" + name.substr(name.find_last_of('.'));
        shard.entries.push_back(copy);
        emit("extra copy of " + name, shard);
      } else if (kind == 3 || kind == 4) {
        const std::string from = entry.dtype;
        const std::string type = retype(entry, random, kind == 3);
        if (!type.empty()) emit("retyped " + name + " " + from + " to " + type, shard);
      } else if (kind == 5) {
        if (reshape(entry, random)) emit("reshaped " + name + " to " + tensor::shape_text(entry.shape), shard);
      } else if (kind == 6) {
        if (resize_rows(entry, -1)) emit("last row dropped from " + name, shard);
      } else if (kind == 7) {
        if (resize_rows(entry, 1)) emit("row added to " + name, shard);
      } else {
        if (poison(entry, random)) emit("NaN in " + name, shard);
      }
    }
  }
}

inline void mutate_container(const Shard& shard, const std::string& bytes, Random& random, std::vector<Mutant>& out) {
  const auto emit = [&](const std::string& what, std::string file) {
    out.push_back({.what = what, .files = {{"model.safetensors", std::move(file)}}});
  };
  for (int i = 0; i < 2; ++i) emit("file cut", bytes.substr(0, pick(random, bytes.size())));
  emit("last byte cut", bytes.substr(0, bytes.size() - 1));
  emit("empty file", "");
  emit("bytes after the end", bytes + "x");
  emit("header length wrong", bytes_of<uint64_t>(pick(random, 1000)) + bytes.substr(8));
  emit("header length huge", bytes_of<uint64_t>(~uint64_t{0} - pick(random, 9)) + bytes.substr(8));
  const Entry& entry = shard.entries[pick(random, shard.entries.size())];
  emit("name twice: " + entry.name, shard_bytes(shard, [&](std::string& header) {
         header.insert(1, "\"" + entry.name + "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},");
       }));
  emit("offsets shifted", shard_bytes(shard, [&](std::string& header) {
         const size_t at = header.find("\"data_offsets\":[", pick(random, header.size() / 2)) + 16;
         header.insert(at, "1");
       }));
  // Index files: right, then with a lie.
  for (int lie = 0; lie < 6; ++lie) {
    json::object map;
    for (const Entry& one : shard.entries) map[one.name] = "model.safetensors";
    Mutant mutant{.what = "index lie " + std::to_string(lie) + " on " + entry.name};
    if (lie == 1) map.erase(entry.name);
    if (lie == 2) map[entry.name + ".more"] = "model.safetensors";
    if (lie == 3) map[entry.name] = "model-00002-of-00002.safetensors";
    if (lie == 4) mutant.files["model-00001-of-00002.safetensors"] = bytes;
    if (lie == 5) map[entry.name] = "../model.safetensors";
    mutant.files["model.safetensors.index.json"] =
        boost::json::serialize(json::object{{"metadata", json::object{}}, {"weight_map", map}});
    out.push_back(std::move(mutant));
  }
}

// ---- config.json

// All members below `at`, as paths of keys.
inline void leaves(const json::value& at, std::vector<std::string>& path, std::vector<std::vector<std::string>>& out) {
  if (at.is_object()) {
    for (const auto& [key, value] : at.get_object()) {
      // Free text of the writer; and a rule that files of other writers do without, so that its loss cannot be seen.
      if (key == "meta" || key == "weight_scale_semantics") continue;
      path.emplace_back(key);
      out.push_back(path);
      leaves(value, path, out);
      path.pop_back();
    }
  }
}

inline json::value& member(json::value& root, const std::vector<std::string>& path) {
  json::value* at = &root;
  for (const std::string& key : path) at = &at->as_object().at(key);
  return *at;
}

inline json::value other_value(const json::value& from, Random& random) {
  static const int64_t kNumbers[] = {-1, 0, 1, 2, 3, 4, 8, 16, 32, 64, 256, 1 << 20, int64_t{1} << 62};
  static const char* kWords[] = {
      "",    "bogus", "int",  "float", "group", "channel", "tensor", "block",          "gptq",    "awq",
      "fp8", "gemm",  "gemv", "nf4",   "fp4",   "token",   "dense",  "pack-quantized", "gptq_v2", "marlin"};
  if (from.is_bool()) return !from.get_bool();
  if (from.is_number()) return kNumbers[pick(random, std::size(kNumbers))];
  if (from.is_string()) return kWords[pick(random, std::size(kWords))];
  if (from.is_null()) return pick(random, 2) ? json::value(int64_t{64}) : json::value("bogus");
  if (from.is_array())
    return pick(random, 2) ? json::value(json::array{}) : json::value(json::array{"re:.*layers.1.*"});
  return json::object{};
}

inline void mutate_config(const json::value& config, Random& random, std::vector<Mutant>& out) {
  const auto emit = [&](const std::string& what, const json::value& changed) {
    out.push_back({.what = what, .files = {{"config.json", boost::json::serialize(changed)}}});
  };
  const std::string quantization = "quantization_config";
  std::vector<std::vector<std::string>> all;
  std::vector<std::string> path = {quantization};
  json::value root = config;
  // A format without a quantization object (QServe) is told by its tensors alone.
  const bool declared = config.as_object().contains(quantization);
  if (declared) leaves(root.at(quantization), path, all);
  for (int i = 0; declared && i < 8; ++i) {
    const std::vector<std::string>& which = all[pick(random, all.size())];
    json::value changed = config;
    std::string what = "config";
    for (const std::string& key : which) what += "." + key;
    if (i % 4 == 3) {
      std::vector<std::string> above(which.begin(), which.end() - 1);
      member(changed, above).as_object().erase(which.back());
      what += " removed";
    } else {
      json::value& at = member(changed, which);
      at = other_value(at, random);
      what += " = " + boost::json::serialize(at);
    }
    emit(what, changed);
  }
  if (declared) {
    json::value none = config;
    none.as_object().erase(quantization);
    emit("config.quantization_config removed", none);
  }
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_key_value_heads"}) {
    json::value changed = config;
    const int64_t now = *json::as_int(config.at(key));
    const int64_t values[] = {now + 1, now * 2, now - 1, 0, -now, int64_t{1} << 60};
    changed.as_object()[key] = values[pick(random, std::size(values))];
    emit(std::string("config.") + key + " = " + boost::json::serialize(changed.at(key)), changed);
  }
  json::value changed = config;
  changed.as_object()["model_type"] = "bogus";
  emit("config.model_type = bogus", changed);
  emit("config is an array", json::array{});
  out.push_back({.what = "config cut", .files = {{"config.json", boost::json::serialize(config).substr(0, 60)}}});
}

// ---- GGUF

struct Gguf {
  struct Pair {
    std::string key;
    uint32_t type;
    std::string bytes;
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;
    uint32_t type;
    std::string data;
  };
  std::vector<Pair> pairs;
  std::vector<Tensor> tensors;
  uint64_t alignment = 32;
};

inline std::string value_bytes(const io::GgufValue& value) {
  std::string out;
  if (value.type == io::GgufType::kArray) {
    out += bytes_of(static_cast<uint32_t>(value.element)) + bytes_of<uint64_t>(value.count);
    for (const io::GgufValue& nested : value.nested) out += value_bytes(nested);
  }
  for (const std::string_view text : value.strings) out += gguf_string(text);
  out.append(reinterpret_cast<const char*>(value.raw.data()), value.raw.size());
  return out;
}

inline Gguf parse(const io::GgufFile& file) {
  Gguf out;
  out.alignment = file.alignment;
  for (const io::GgufKeyValue& pair : file.metadata) {
    out.pairs.push_back({pair.key, static_cast<uint32_t>(pair.value.type), value_bytes(pair.value)});
  }
  for (const io::GgufTensor& one : file.tensors) {
    Gguf::Tensor made{.name = one.name, .type = static_cast<uint32_t>(one.type->id)};
    made.ne.assign(one.shape.rbegin(), one.shape.rend());
    made.data.assign(reinterpret_cast<const char*>(one.data.data()), one.data.size());
    out.tensors.push_back(std::move(made));
  }
  return out;
}

inline std::string gguf_bytes(const Gguf& gguf) {
  std::string out =
      "GGUF" + bytes_of<uint32_t>(3) + bytes_of<uint64_t>(gguf.tensors.size()) + bytes_of<uint64_t>(gguf.pairs.size());
  for (const Gguf::Pair& pair : gguf.pairs) out += gguf_string(pair.key) + bytes_of(pair.type) + pair.bytes;
  uint64_t offset = 0;
  const auto padded = [&](uint64_t n) { return (n + gguf.alignment - 1) / gguf.alignment * gguf.alignment; };
  for (const Gguf::Tensor& one : gguf.tensors) {
    out += gguf_string(one.name) + bytes_of(static_cast<uint32_t>(one.ne.size()));
    for (const uint64_t extent : one.ne) out += bytes_of(extent);
    out += bytes_of(one.type) + bytes_of(offset);
    offset += padded(one.data.size());
  }
  out.resize(padded(out.size()), '\0');
  const size_t begin = out.size();
  for (const Gguf::Tensor& one : gguf.tensors) {
    out += one.data;
    out.resize(begin + padded(out.size() - begin), '\0');
  }
  return out;
}

inline void mutate_gguf(const Gguf& original, Random& random, std::vector<Mutant>& out) {
  const auto emit = [&](const std::string& what, std::string bytes) {
    out.push_back({.what = what, .files = {{"model.gguf", std::move(bytes)}}});
  };
  const std::string whole = gguf_bytes(original);
  emit("written again", whole);
  for (int i = 0; i < 3; ++i) emit("file cut", whole.substr(0, pick(random, whole.size())));
  emit("last block cut", whole.substr(0, whole.size() - 64));
  emit("empty file", "");
  emit("bytes after the end", whole + std::string(64, 'x'));
  emit("version 9", whole.substr(0, 4) + bytes_of<uint32_t>(9) + whole.substr(8));
  emit("count of tensors huge", whole.substr(0, 8) + bytes_of<uint64_t>(~uint64_t{0} >> 1) + whole.substr(16));
  for (int i = 0; i < 14; ++i) {
    Gguf gguf = original;
    const size_t at = pick(random, gguf.pairs.size());
    Gguf::Pair& pair = gguf.pairs[at];
    const std::string key = pair.key;
    if (i % 7 == 0) {
      gguf.pairs.erase(gguf.pairs.begin() + static_cast<ptrdiff_t>(at));
      emit("removed " + key, gguf_bytes(gguf));
    } else if (i % 7 == 1) {
      pair.type = static_cast<uint32_t>(io::GgufType::kString);
      pair.bytes = gguf_string("bogus");
      emit("text in " + key, gguf_bytes(gguf));
    } else if (i % 7 == 2) {
      pair.type = static_cast<uint32_t>(io::GgufType::kI32);
      pair.bytes = bytes_of<int32_t>(-3);
      emit("-3 in " + key, gguf_bytes(gguf));
    } else if (i % 7 == 3) {
      gguf.pairs.push_back(pair);
      emit("twice " + key, gguf_bytes(gguf));
    } else {
      // A number of the architecture, with another value of the same type.
      std::vector<Gguf::Pair*> numbers;
      for (Gguf::Pair& one : gguf.pairs) {
        const bool u32 = one.type == static_cast<uint32_t>(io::GgufType::kU32);
        if (u32 && one.key.find("general.") != 0 && one.key.find("tokenizer.") != 0) numbers.push_back(&one);
      }
      Gguf::Pair& number = *numbers[pick(random, numbers.size())];
      uint32_t now = 0;
      std::memcpy(&now, number.bytes.data(), 4);
      const uint32_t values[] = {now + 1, now * 2, now / 2, 0, 0x7fffffff, 0xffffffff};
      const uint32_t value = values[pick(random, std::size(values))];
      number.bytes = bytes_of(value);
      emit(std::to_string(value) + " for " + std::to_string(now) + " in " + number.key, gguf_bytes(gguf));
    }
  }
  for (int round = 0; round < 2; ++round) {
    for (int kind = 0; kind < 8; ++kind) {
      Gguf gguf = original;
      const size_t at = pick(random, gguf.tensors.size());
      Gguf::Tensor& one = gguf.tensors[at];
      const std::string name = one.name;
      if (kind == 0) {
        if (name == "output.weight") continue;  // no output head means a tied one
        gguf.tensors.erase(gguf.tensors.begin() + static_cast<ptrdiff_t>(at));
        emit("removed " + name, gguf_bytes(gguf));
      } else if (kind == 1) {
        one.name += "x";
        emit("renamed " + name, gguf_bytes(gguf));
      } else if (kind == 2) {
        Gguf::Tensor copy = one;
        copy.name = round == 0 ? name : "copy." + name;
        gguf.tensors.push_back(copy);
        emit("copy of " + name, gguf_bytes(gguf));
      } else if (kind == 3) {
        one.type = static_cast<uint32_t>(pick(random, 45));
        // Types that need as many bytes a weight cannot be told apart from the file.
        const auto to = io::ggml_type(one.type);
        const io::GgmlType& from = *io::ggml_type(original.tensors[at].type).value();
        if (to.ok() && (*to)->block_bytes * from.block_size == from.block_bytes * (*to)->block_size) continue;
        emit("retyped " + name + " to " + std::to_string(one.type), gguf_bytes(gguf));
      } else if (kind == 4) {
        if (one.ne.size() < 2 || one.ne[0] == one.ne[1]) continue;
        std::swap(one.ne[0], one.ne[1]);
        emit("axes swapped in " + name, gguf_bytes(gguf));
      } else if (kind == 5) {
        one.ne.insert(round == 1 ? one.ne.begin() : one.ne.end(), 1);
        emit("axis of 1 added to " + name, gguf_bytes(gguf));
      } else if (kind == 6) {
        const uint64_t rows = one.ne.back();
        one.data.resize(one.data.size() / rows * (rows - 1));
        one.ne.back() -= 1;
        emit("last row dropped from " + name, gguf_bytes(gguf));
      } else {
        one.data.append(32, '\0');
        emit("32 bytes too many in " + name, gguf_bytes(gguf));
      }
    }
  }
}

}  // namespace tare::model::mutants
