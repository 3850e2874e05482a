#pragma once

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoints/checkpoint.h"
#include "io/safetensors_writer.h"
#include "testing/fixtures.h"

namespace tare::checkpoints::testing_util {

/// A small checkpoint put together by a test: tensors by hand, a configuration, loaded again through the front door.
class TinyCheckpoint {
 public:
  explicit TinyCheckpoint(const std::string& name) : folder_(testing::scratch_directory("tiny_" + name)) {
    config["model_type"] = "llama";
  }

  template <class T>
  TinyCheckpoint& add(const std::string& name, tensor::DType dtype, tensor::Shape shape, const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    tensors_.push_back({name, dtype, std::move(shape), std::move(bytes)});
    return *this;
  }

  TinyCheckpoint& file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return *this;
  }

  std::string write() {
    std::vector<io::TensorDeclaration> declarations;
    for (const Stored& t : tensors_) declarations.push_back({t.name, t.dtype, t.shape});
    io::SafetensorsWriterOptions options;
    for (const auto& [key, value] : metadata) options.metadata[key] = value;
    auto writer = io::SafetensorsWriter::create_in_folder(folder_, declarations, options);
    EXPECT_TRUE(writer.ok()) << writer.error().message();
    for (const Stored& t : tensors_) {
      if (t.bytes.empty()) continue;
      EXPECT_TRUE(writer->append(t.name, t.bytes).ok());
    }
    EXPECT_TRUE(writer->finish().ok());
    file("config.json", boost::json::serialize(config));
    return folder_;
  }

  Result<tensor::ModelWeights> load(const LoadOptions& options = {}) { return load_checkpoint(write(), options); }

  /// The named weight as f32; a failed load fails the test.
  std::vector<float> values(const std::string& name = "p.weight", const LoadOptions& options = {}) {
    auto weights = load(options);
    EXPECT_TRUE(weights.ok()) << (weights.ok() ? "" : weights.error().message());
    if (!weights.ok()) return {};
    auto weight = weights->load(name);
    EXPECT_TRUE(weight.ok()) << (weight.ok() ? "" : weight.error().message());
    if (!weight.ok()) return {};
    const tensor::WeightInfo* info = weights->find(name);
    if (const auto* q = std::get_if<tensor::QuantizedTensor>(&*weight)) {
      EXPECT_EQ(std::get<tensor::QuantSpec>(info->form), q->spec());
    }
    return tensor::to_f32(*weight).value();
  }

  /// Message of the error that loading everything gives; empty when there is none.
  std::string error(const LoadOptions& options = {}) {
    auto weights = load(options);
    if (!weights.ok()) return weights.error().message();
    for (const std::string& name : weights->names()) {
      auto weight = weights->load(name);
      if (!weight.ok()) return weight.error().message();
    }
    return {};
  }

  json::object config;
  std::map<std::string, std::string> metadata;

 private:
  struct Stored {
    std::string name;
    tensor::DType dtype;
    tensor::Shape shape;
    std::vector<std::byte> bytes;
  };
  std::string folder_;
  std::vector<Stored> tensors_;
};

}  // namespace tare::checkpoints::testing_util
