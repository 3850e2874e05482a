#pragma once

#include <string>

#include "base/result.h"
#include "tare/plugin.h"
#include "tensor/quantized_tensor.h"

namespace tare::plugin {

/// A line that a plugin wrote, or "no reason given".
std::string text_of(const char* text);

/// Room for the one line of an error.
class ErrorText {
 public:
  TareError* c() { return &error_; }
  std::string text() const { return text_of(room_); }

 private:
  char room_[512] = {};
  TareError error_{room_, sizeof(room_)};
};

/// Errors: extents or widths that no matrix has.
Status check_info(const TareAffineInfo& info, const std::string& where);
tensor::QuantSpec spec_of(const TareAffineInfo& info);
/// Bytes of codes, scales and zeros as they would be stored.
int64_t stored_bytes(const TareAffineInfo& info);

/// Lets `fill` write the numbers and makes the tensor. Errors: fill's; codes beyond their width; scales that are not
/// finite.
template <class Fill>
Result<tensor::QuantizedTensor> make_affine(const TareAffineInfo& info, const std::string& origin,
                                            const std::string& where, Fill&& fill);

/// The non-template part.
struct AffineRoom {
  explicit AffineRoom(const TareAffineInfo& info);
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<int16_t> zeros;
  TareAffineData c();
};
Result<tensor::QuantizedTensor> make_affine(const TareAffineInfo& info, AffineRoom room, const std::string& origin,
                                            const std::string& where);

template <class Fill>
Result<tensor::QuantizedTensor> make_affine(const TareAffineInfo& info, const std::string& origin,
                                            const std::string& where, Fill&& fill) {
  AffineRoom room(info);
  TareAffineData data = room.c();
  ErrorText error;
  if (fill(&data, error.c()) != 0)
    return invalid_input("plugin could not make a weight", {.where = where, .found = error.text()});
  return make_affine(info, std::move(room), origin, where);
}

}  // namespace tare::plugin
