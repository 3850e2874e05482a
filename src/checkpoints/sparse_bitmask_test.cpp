// Dense weights with their zeros left out (docs/formats.md 3.8): no tool writes them any more, so the bytes are by
// hand.
#include "checkpoints/sparse_bitmask.h"

#include "checkpoints/tiny_checkpoint.h"

namespace tare::checkpoints {
namespace {

using tensor::DType;
using testing_util::TinyCheckpoint;

// [2, 9]: row 0 keeps columns 0, 3, 8; row 1 keeps column 7.
TinyCheckpoint sparse(const std::string& name, std::vector<int64_t> offsets = {0, 3},
                      std::vector<uint8_t> mask = {9, 1, 128, 0}) {
  TinyCheckpoint c(name);
  c.config["quantization_config"] =
      json::object{{"quant_method", "compressed-tensors"}, {"sparsity_config", {{"format", "sparse-bitmask"}}}};
  c.add<int64_t>("p.weight.shape", DType::kI64, {2}, {2, 9})
      .add<float>("p.weight.compressed", DType::kF32, {4}, {1, 2, 3, 4})
      .add<uint8_t>("p.weight.bitmask", DType::kU8, {2, 2}, mask)
      .add<int64_t>("p.weight.row_offsets", DType::kI64, {2}, offsets);
  return c;
}

TEST(SparseBitmask, PutsZerosBack) {
  const std::vector<float> expected = {1, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0};
  EXPECT_EQ(sparse("bitmask").values(), expected);
}

TEST(SparseBitmask, RefusesWhatDoesNotFit) {
  EXPECT_NE(sparse("bitmask_offset", {0, 2}).error().find("row_offsets[1]"), std::string::npos);
  EXPECT_NE(sparse("bitmask_few", {0, 2}, {1, 1, 128, 0}).error().find("does not fit"), std::string::npos);
  EXPECT_NE(sparse("bitmask_many", {0, 3}, {9, 1, 255, 0}).error().find("does not fit"), std::string::npos);
  EXPECT_NE(sparse("bitmask_beyond", {0, 3}, {9, 2, 128, 0}).error().find("does not fit"), std::string::npos);
  TinyCheckpoint undeclared = sparse("bitmask_undeclared");
  undeclared.config["quantization_config"].as_object()["sparsity_config"] =
      json::object{{"format", "sparse-24-bitmask"}};
  EXPECT_NE(undeclared.error().find("p.weight.bitmask"), std::string::npos);
}

}  // namespace
}  // namespace tare::checkpoints
