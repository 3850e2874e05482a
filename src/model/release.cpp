#include "model/release.h"

#include "io/mapped_file.h"

namespace tare::model {

void release_pages(const tensor::Weight& weight) {
  const auto drop = [](const Buffer& bytes) { io::advise(bytes, io::Advice::kDrop); };
  if (const auto* dense = std::get_if<tensor::Tensor>(&weight)) {
    drop(dense->data);
    return;
  }
  const tensor::QuantizedFields& f = std::get<tensor::QuantizedTensor>(weight).fields();
  drop(f.codes);
  for (const std::optional<tensor::Grid>* grid : {&f.a, &f.A, &f.b, &f.B}) {
    if (*grid) drop((*grid)->values);
  }
  if (const auto* z = std::get_if<tensor::Grid>(&f.z)) drop(z->values);
}

}  // namespace tare::model
