#include "plugin/format_adapter.h"

#include <fmt/format.h>

#include <memory>

#include "checkpoints/parts.h"
#include "plugin/affine_abi.h"

namespace tare::plugin {

using checkpoints::Source;

namespace {

// A source as plugins see it. Keeps what its pointers point to.
class SourceView {
 public:
  explicit SourceView(Source source) : source_(std::move(source)), names_(source_.tensors.names()) {
    config_ = source_.has_config() ? boost::json::serialize(source_.config) : "";
    quantization_ = source_.has_quantization() ? boost::json::serialize(source_.quantization) : "";
    c_ = {.struct_bytes = sizeof(TareSource),
          .host = this,
          .config = config_.c_str(),
          .quantization = quantization_.c_str(),
          .tensor_count = static_cast<int64_t>(names_.size()),
          .tensor_at = tensor_at,
          .find = find};
  }
  SourceView(const SourceView&) = delete;
  SourceView& operator=(const SourceView&) = delete;

  const TareSource* c() const { return &c_; }

 private:
  static const SourceView& self(const TareSource* source) { return *static_cast<const SourceView*>(source->host); }

  static int tensor_at(const TareSource* source, int64_t index, TareTensor* out) {
    const SourceView& view = self(source);
    if (index < 0 || index >= source->tensor_count || !out) return 1;
    const std::string& name = view.names_[static_cast<size_t>(index)];
    const tensor::Tensor& t = *view.source_.tensors.find(name);
    *out = {.name = name.c_str(),
            .dtype = tensor::dtype_name(t.dtype).data(),  // a literal
            .shape = t.shape.data(),
            .rank = static_cast<int32_t>(t.shape.size()),
            .data = t.data.data(),
            .bytes = t.data.size()};
    return 0;
  }

  static int find(const TareSource* source, const char* name, TareTensor* out) {
    const SourceView& view = self(source);
    if (!name) return 1;
    const auto at = std::lower_bound(view.names_.begin(), view.names_.end(), std::string_view(name));
    if (at == view.names_.end() || *at != name) return 1;
    return tensor_at(source, at - view.names_.begin(), out);
  }

  Source source_;
  std::vector<std::string> names_;
  std::string config_, quantization_;
  TareSource c_;
};

// Where a plugin declares its matrices while `read` runs.
struct Reading {
  const TareFormat* format;
  Source* source;
  tensor::ModelWeights* out;
  std::shared_ptr<const SourceView> view;
  Status status;  // the first refusal

  Status add(const char* weight, const TareAffineInfo* info, const char* const* uses, int32_t count) {
    if (!weight || !info || (count > 0 && !uses))
      return internal_error("plugin passed no pointer", {.where = format->name});
    const std::string name = weight;
    TARE_TRY(check_info(*info, name));
    int64_t bytes = 0;
    for (int32_t i = 0; i < count; ++i) {
      TARE_ASSIGN(const tensor::Tensor taken, source->tensors.take(uses[i] ? uses[i] : ""));
      bytes += static_cast<int64_t>(taken.data.size());
    }
    const TareAffineInfo declared = *info;
    return checkpoints::add_quantized(
        *out, name, {declared.n, declared.k}, spec_of(declared), {}, bytes,
        [format = format, view = view, declared, name, bytes]() -> Result<tensor::QuantizedTensor> {
          TARE_ASSIGN(tensor::QuantizedTensor made,
                      make_affine(declared, format->name, name, [&](TareAffineData* data, TareError* error) {
                        return format->load(view->c(), name.c_str(), &declared, data, error);
                      }));
          tensor::QuantizedFields fields = made.fields();
          fields.origin.bytes = bytes;
          return tensor::QuantizedTensor::make(std::move(fields));
        });
  }

  static int add_affine(TareReader* reader, const char* weight, const TareAffineInfo* info, const char* const* uses,
                        int32_t count) {
    auto& reading = *static_cast<Reading*>(reader->host);
    Status status = reading.add(weight, info, uses, count);
    if (status.ok()) return 0;
    if (reading.status.ok()) reading.status = std::move(status);
    return 1;
  }
};

Status read(const TareFormat& format, Source& source, tensor::ModelWeights& out) {
  Reading reading{.format = &format, .source = &source, .out = &out, .view = std::make_shared<SourceView>(source)};
  TareReader reader{.struct_bytes = sizeof(TareReader), .host = &reading, .add_affine = Reading::add_affine};
  ErrorText error;
  const int failed = format.read(reading.view->c(), &reader, error.c());
  TARE_TRY(std::move(reading.status));
  if (failed != 0) {
    return invalid_input(fmt::format("plugin format {} does not read this checkpoint", format.name),
                         {.where = source.path, .found = error.text()});
  }
  return checkpoints::take_dense_rest(source, out);
}

}  // namespace

checkpoints::CheckpointFormat adapt_format(const TareFormat& format) {
  checkpoints::CheckpointFormat out;
  out.name = format.name;
  out.min_capability = -1;
  out.activation_dtypes = {"float32"};
  out.reads = format.summary;
  out.detect = [&format](const Source& source) {
    if (!source.gguf.empty()) return checkpoints::Match::kNo;
    const SourceView view(source);
    return format.detect(view.c()) == 1 ? checkpoints::Match::kYes : checkpoints::Match::kNo;
  };
  out.read = [&format](Source& source, const checkpoints::LoadOptions&, tensor::ModelWeights& weights) {
    return read(format, source, weights);
  };
  return out;
}

}  // namespace tare::plugin
