#pragma once

#include "tensor/quantized_tensor.h"

namespace tare::model {

/// Gives the mapped file pages of a weight back once it is packed or quantized, so that a model never stands in memory
/// twice. Memory that is no mapped file is left alone; reading the weight again is legal and reads the file again.
void release_pages(const tensor::Weight& weight);

}  // namespace tare::model
