#include "quantize/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "model/weight_plan.h"
#include "quantize/block_report.h"
#include "quantize/block_walk.h"
#include "quantize/forms/form.h"
#include "quantize/matrix_plan.h"
#include "tensor/parameter_count.h"

namespace tare::quantize {

using model::Site;
using tensor::QuantizedTensor;
using tensor::Tensor;

namespace {

constexpr Site kSites[] = {Site::kQkv, Site::kOut, Site::kGateUp, Site::kDown};
// Relative squared change of a block's output that rounding of folded weights may leave.
constexpr double kProof = 1e-6;

class Pipeline {
 public:
  Pipeline(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
           const PipelineOptions& options, ThreadPool& pool)
      : source_(std::move(source)),
        arch_(arch),
        options_(options),
        pool_(pool),
        products_(options.kernels, options.caps, pool) {}

  Result<Outcome> run() {
    TARE_ASSIGN([[maybe_unused]] const auto leftovers, model::account_weights(*source_, arch_));
    TARE_ASSIGN(matrices_, plan_matrices(arch_, options_));
    TARE_TRY(check_source(*source_, matrices_, options_, out_.substitutions));
    out_.weights.config = source_->config;
    out_.weights.format = "tare";
    out_.weights.kv = source_->kv;
    if (options_.widths.kv != 16) {
      const std::string dtype = fmt::format("int{}", options_.widths.kv);
      out_.weights.kv = {dtype, dtype};
    }
    TARE_TRY(transform_model());
    TARE_TRY(start_data());
    out_.error_kind = data_ ? "output" : "weight";
    told_ = {out_.matrices.size(), out_.transforms.size(), out_.substitutions.size()};
    const int64_t finished = options_.journal ? options_.journal->blocks() : 0;
    for (int64_t layer = 0; layer < arch_.layers; ++layer) {
      if (layer < finished) {
        TARE_TRY(take_finished(layer));
      } else {
        TARE_TRY(quantize_block(layer));
        TARE_TRY(publish(layer));
      }
    }
    TARE_TRY(add_tables(*source_, arch_, options_.head, out_.weights, out_.substitutions, pool_));
    for (const std::string& name : source_->names()) {
      if (!out_.weights.contains(name)) TARE_TRY(keep(name));
    }
    TARE_ASSIGN(out_.parameters, tensor::parameter_count(out_.weights));
    out_.stored_bytes = out_.weights.stored_bytes();
    return std::move(out_);
  }

 private:
  // What one block at work takes at its worst: at the widest input, Gram, cross terms, factor and packed copies;
  // several copies of the largest matrix; the dense block.
  int64_t working_bytes(bool solves) const {
    const auto [block, largest, widest] = block_sizes(matrices_);
    if (!solves) return 4 * (block + 3 * largest);
    return 4 * (block + 6 * largest + 5 * widest * widest) + 1024 * 4 * (8 * arch_.hidden + 4 * arch_.intermediate);
  }

  Status reserve_memory(bool solves) {
    if (!options_.budget) return {};
    TARE_ASSIGN(working_, options_.budget->reserve("one block in f32 and its statistics",
                                                   static_cast<uint64_t>(working_bytes(solves))));
    if (options_.journal) return {};
    int64_t result = 0;
    for (const PlannedMatrix& planned : matrices_) {
      const int64_t count = planned.linear.n * planned.linear.k;
      if (!planned.scheme.keep) result += count * planned.scheme.grid.bits / 8 + count / 16;
    }
    TARE_ASSIGN(result_, options_.budget->reserve("the quantized weights", static_cast<uint64_t>(result)));
    return {};
  }

  Status keep(const std::string& name) {
    const std::shared_ptr<const tensor::ModelWeights> source = source_;
    return out_.weights.add(name, *source_->find(name), [source, name] { return source->load(name); });
  }

  TransformContext context() {
    return {.arch = &arch_, .widths = options_.widths, .products = &products_, .settings = options_.transform_settings};
  }

  void report(TransformReport done) {
    for (const std::string& note : done.notes) out_.substitutions.push_back(done.name + ": " + note);
    if (options_.transform_progress) options_.transform_progress(done);
    out_.transforms.push_back(std::move(done));
  }

  std::vector<TokenStore*> streams() {
    if (!data_) return {};
    std::vector<TokenStore*> out = {&data_->hidden(BlockData::Stream::kQuantized)};
    if (data_->has_reference()) out.push_back(&data_->hidden(BlockData::Stream::kReference));
    return out;
  }

  Status phase(std::string_view name, int64_t block) {
    return options_.journal ? options_.journal->phase(name, block) : Status{};
  }

  // The finished block becomes part of the result. With a journal its weights live in a file from now on.
  Status publish(int64_t layer) {
    if (!options_.journal) {
      for (NamedWeight& named : block_weights_) {
        TARE_TRY(out_.weights.add(std::move(named.name), std::move(named.weight), named.activation));
      }
    } else {
      const auto from = [](const auto& list, size_t first) { return std::span(list).subspan(first); };
      TARE_TRY(options_.journal->append(
          block_weights_,
          block_report(from(out_.matrices, told_.matrices), from(out_.transforms, told_.transforms),
                       from(out_.substitutions, told_.substitutions)),
          streams()));
      TARE_TRY(add_mapped(layer));
    }
    block_weights_.clear();
    told_ = {out_.matrices.size(), out_.transforms.size(), out_.substitutions.size()};
    return {};
  }

  Status add_mapped(int64_t layer) {
    tensor::ModelWeights described;
    std::vector<std::string> names;
    {
      TARE_ASSIGN(std::vector<NamedWeight> weights, options_.journal->weights(layer));
      for (NamedWeight& named : weights) {
        names.push_back(named.name);
        TARE_TRY(described.add(std::move(named.name), std::move(named.weight), named.activation));
      }
    }
    // Mapped anew for each load, so that no page of a finished block stays.
    for (size_t i = 0; i < names.size(); ++i) {
      TARE_TRY(out_.weights.add(names[i], *described.find(names[i]),
                                [path = options_.journal->block_path(layer), i]() -> Result<tensor::Weight> {
                                  TARE_ASSIGN(std::vector<NamedWeight> weights, map_weights(path));
                                  const tensor::Weight& weight = weights[i].weight;
                                  return weight;
                                }));
    }
    return {};
  }

  // A block that an earlier run finished.
  Status take_finished(int64_t layer) {
    TARE_TRY(read_block_report(options_.journal->report(layer), out_));
    TARE_TRY(add_mapped(layer));
    told_ = {out_.matrices.size(), out_.transforms.size(), out_.substitutions.size()};
    done_ = 0;
    for (const PlannedMatrix& planned : matrices_) done_ += planned.layer <= layer ? 1 : 0;
    if (options_.progress && !out_.matrices.empty()) {
      options_.progress(out_.matrices.back(), static_cast<int64_t>(out_.matrices.size()),
                        static_cast<int64_t>(matrices_.size()));
    }
    if (layer + 1 < options_.journal->blocks()) return {};
    return options_.journal->restore(streams());
  }

  // Transforms of the whole model change what the source gives.
  Status transform_model() {
    for (const std::string_view name : options_.recipe->transforms) {
      TARE_ASSIGN(const Transform* transform, find_transform(name));
      if (!transform->model) {
        block_transforms_.push_back(transform);
        continue;
      }
      if (!block_transforms_.empty()) {
        return internal_error("a transform of the whole model comes after one of a block",
                              {.where = std::string(options_.recipe->name), .found = std::string(name)});
      }
      TransformReport done{.name = std::string(name)};
      TARE_ASSIGN(source_, transform->model(source_, arch_, context(), done));
      transformed_ = true;
      report(std::move(done));
    }
    out_.weights.config = source_->config;
    return {};
  }

  Status start_data() {
    const bool solves = std::any_of(matrices_.begin(), matrices_.end(), [](const PlannedMatrix& p) {
      return !p.scheme.keep && p.scheme.algorithm == "gptq";
    });
    const bool looks = std::any_of(block_transforms_.begin(), block_transforms_.end(),
                                   [](const Transform* t) { return t->needs_data; });
    TARE_TRY(reserve_memory(solves || looks));
    if (!solves && !looks) return {};
    const bool correct = solves && options_.solve.correction > 0;
    TARE_ASSIGN(
        BlockData data,
        BlockData::start(*source_, arch_, options_.calibration,
                         {.spill_folder = options_.spill_folder, .budget = options_.budget, .reference = correct},
                         products_));
    data_ = std::make_unique<BlockData>(std::move(data));
    return {};
  }

  Status quantize_block(int64_t layer) {
    TARE_ASSIGN(Block block, Block::load(*source_, arch_, layer));
    for (BlockMatrix& matrix : block.matrices) matrix.scheme = matrices_[done_ + index_of(block, matrix)].scheme;
    TARE_TRY(transform_block(block));
    share_ranges(block);
    if (!data_) {
      for (BlockMatrix& matrix : block.matrices) TARE_TRY(round_alone(matrix, block));
    } else {
      TARE_ASSIGN(BlockWalk walk, BlockWalk::begin(*data_, block, options_.widths.kv, options_.solve.correction > 0));
      // What is solved goes into a copy, site by site; dense matrices go when their site is behind.
      Block solved = block;
      for (BlockMatrix& matrix : solved.matrices) matrix.w = std::vector<float>();
      for (const Site site : kSites) {
        TARE_TRY(solve_site(block, solved, site, walk));
        TARE_TRY(walk.set(site, solved));
        for (const size_t index : block.reading(site)) {
          block.matrices[index].w = std::vector<float>();
          solved.matrices[index].w = std::vector<float>();
        }
      }
      TARE_TRY(walk.finish());
    }
    TARE_TRY(add_vectors(block));
    done_ += block.matrices.size();
    return {};
  }

  Status solve_site(const Block& block, Block& solved, Site site, BlockWalk& walk) {
    TARE_TRY(check_interrupt("quantize"));
    TARE_TRY(phase("calibrate", block.layer));
    TARE_ASSIGN(const SiteInputs inputs, walk.collect(site));
    TARE_TRY(phase("solve", block.layer));
    const std::vector<size_t> reading = block.reading(site);
    if (inputs.zero_tokens == data_->tokens()) {
      out_.substitutions.push_back(
          fmt::format("{}: its input is 0 for every token of the data", block.matrices[reading[0]].name));
    }
    TARE_ASSIGN(SiteSolver solver, SiteSolver::make(inputs, options_.solve, products_));
    for (const size_t index : reading) {
      TARE_TRY(solve(block, block.matrices[index], solved.matrices[index], solver, inputs));
    }
    return {};
  }

  static size_t index_of(const Block& block, const BlockMatrix& matrix) {
    return static_cast<size_t>(&matrix - block.matrices.data());
  }

  Status transform_block(Block& block) {
    if (data_) TARE_TRY(data_->open(block, !block_transforms_.empty()));
    for (const Transform* transform : block_transforms_) {
      TARE_TRY(check_interrupt("quantize"));
      const int64_t revision = block.revision();
      TARE_ASSIGN(TransformReport done, transform->block(block, *data_, context()));
      done.name = std::string(transform->name);
      done.layer = block.layer;
      if (block.revision() != revision && transform->keeps_output) {
        TARE_ASSIGN(done.output_change, data_->error(block, {}));
        if (!(done.output_change < kProof)) {
          return internal_error("a transform changed what its block computes",
                                {.where = fmt::format("{}, layer {}", transform->name, block.layer),
                                 .expected = fmt::format("a relative squared change below {}", kProof),
                                 .found = fmt::format("{:.3e}", done.output_change)});
        }
      }
      report(std::move(done));
    }
    return {};
  }

  // What reads one input is fused by runners, and shares an outer scale then.
  static void share_ranges(Block& block) {
    for (const Site site : kSites) {
      float range = 0;
      std::vector<GridSpec*> sharing;
      for (const size_t index : block.reading(site)) {
        BlockMatrix& matrix = block.matrices[index];
        const Form* form = matrix.scheme.grid.form;
        if (matrix.scheme.keep || !form || !form->shares_range) continue;
        for (const float v : matrix.w) range = std::max(range, std::abs(v));
        sharing.push_back(&matrix.scheme.grid);
      }
      for (GridSpec* grid : sharing) grid->shared_range = range;
    }
  }

  // Without data: nearest codes, errors of weights.
  Status round_alone(const BlockMatrix& matrix, const Block& block) {
    MatrixReport row = row_of(matrix, block);
    if (matrix.scheme.keep) return keep_matrix(matrix, block, row);
    const GridSpec& grid = matrix.scheme.grid;
    auto made = round_to_nearest(grid, matrix.w.data(), matrix.n, matrix.k, "tare", pool_, matrix.clip);
    if (!made.ok()) return named(std::move(made).error(), matrix);
    row.error = row.error_rtn = weight_error(matrix, *made);
    if (grid.form && grid.form->nearest) {
      TARE_ASSIGN(const QuantizedTensor plain, grid.form->nearest(grid, matrix.w.data(), matrix.n, matrix.k, pool_));
      row.error_rtn = weight_error(matrix, plain);
    }
    row.status = matrix.scheme.algorithm;
    return add(matrix, std::move(made).value(), std::move(row));
  }

  double weight_error(const BlockMatrix& matrix, const QuantizedTensor& made) {
    std::vector<float> decoded(matrix.w.size());
    pool_.parallel_for(matrix.n, 16, [&](int64_t begin, int64_t end) {
      tensor::dequantize(made, begin, end, decoded.data() + begin * matrix.k);
    });
    return relative_error(matrix.w.data(), decoded.data(), matrix.n, matrix.k, pool_);
  }

  Status solve(const Block& block, const BlockMatrix& matrix, BlockMatrix& into, SiteSolver& solver,
               const SiteInputs& inputs) {
    TARE_TRY(check_interrupt("quantize"));
    MatrixReport row = row_of(matrix, block);
    row.tokens = inputs.gram.tokens();
    if (matrix.scheme.keep) {
      into.w = matrix.w;
      return keep_matrix(matrix, block, row);
    }
    const bool writes_stream = (matrix.site == Site::kOut && arch_.attention_norm_out.empty()) ||
                               (matrix.site == Site::kDown && arch_.mlp_norm_out.empty());
    auto solved = solver.solve(matrix, writes_stream ? static_cast<double>(arch_.residual_multiplier) : 0);
    if (!solved.ok()) return named(std::move(solved).error(), matrix);
    into.w = std::move(solved->decoded);
    row.error = solved->error;
    row.error_rtn = solved->error_rtn;
    row.status = solved->status;
    return add(matrix, std::move(solved->weight), std::move(row));
  }

  static Error named(Error error, const BlockMatrix& matrix) {
    error.where = matrix.name + ".weight" + (error.where.empty() ? "" : ", " + error.where);
    return error;
  }

  static MatrixReport row_of(const BlockMatrix& matrix, const Block& block) {
    return {.name = matrix.name, .scheme = describe(matrix.scheme), .layer = block.layer};
  }

  Status keep_matrix(const BlockMatrix& matrix, const Block& block, MatrixReport row) {
    const std::string name = matrix.name + ".weight";
    if (transformed_ || block.revision() != 0) {
      block_weights_.push_back({name, Tensor::from_f32({matrix.n, matrix.k}, matrix.w), {}});
      row.bpw = 32;
    } else {
      // Comes from the source at the end, like everything that is not there by then.
      row.bpw = 8.0 * static_cast<double>(source_->find(name)->stored_bytes) / static_cast<double>(matrix.n * matrix.k);
    }
    row.status = "kept";
    return done(std::move(row));
  }

  Status add(const BlockMatrix& matrix, QuantizedTensor weight, MatrixReport row) {
    row.bpw = weight.bits_per_weight();
    block_weights_.push_back({matrix.name + ".weight", std::move(weight), matrix.scheme.activation});
    return done(std::move(row));
  }

  Status done(MatrixReport row) {
    out_.matrices.push_back(std::move(row));
    if (options_.progress) {
      options_.progress(out_.matrices.back(), static_cast<int64_t>(out_.matrices.size()),
                        static_cast<int64_t>(matrices_.size()));
    }
    return {};
  }

  // Norms and biases of a block that was transformed; those of others stay the source's.
  Status add_vectors(const Block& block) {
    if (block.revision() == 0) return {};
    const auto put = [&](const std::string& name, const std::vector<float>& values) -> Status {
      if (values.empty()) return {};
      block_weights_.push_back({name, Tensor::from_f32({static_cast<int64_t>(values.size())}, values), {}});
      return {};
    };
    for (const BlockMatrix& matrix : block.matrices) TARE_TRY(put(matrix.name + ".bias", matrix.bias));
    const std::pair<const std::string*, const std::vector<float>*> norms[] = {
        {&arch_.attention_norm_in, &block.attention_norm_in},
        {&arch_.attention_norm_out, &block.attention_norm_out},
        {&arch_.mlp_norm_in, &block.mlp_norm_in},
        {&arch_.mlp_norm_out, &block.mlp_norm_out}};
    for (const auto& [name, values] : norms) TARE_TRY(put(model::norm_name(block.layer, *name), *values));
    TARE_TRY(put(model::norm_name(block.layer, "self_attn.q_norm"), block.q_norm));
    return put(model::norm_name(block.layer, "self_attn.k_norm"), block.k_norm);
  }

  std::shared_ptr<const tensor::ModelWeights> source_;
  model::Architecture arch_;
  const PipelineOptions& options_;
  ThreadPool& pool_;
  Products products_;
  std::vector<PlannedMatrix> matrices_;
  std::vector<const Transform*> block_transforms_;
  bool transformed_ = false;  // the source is a view with changed weights
  std::unique_ptr<BlockData> data_;
  size_t done_ = 0;                         // matrices of the blocks behind
  std::vector<NamedWeight> block_weights_;  // of the block at work
  struct Told {
    size_t matrices = 0, transforms = 0, substitutions = 0;
  };
  Told told_;  // how much of the outcome belongs to the blocks behind
  Outcome out_;
  MemoryBudget::Reservation working_, result_;
};

}  // namespace

double relative_error(const float* reference, const float* value, int64_t n, int64_t k, ThreadPool& pool) {
  std::vector<double> error(static_cast<size_t>(n)), power(static_cast<size_t>(n));
  pool.parallel_for(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      double e = 0, p = 0;
      for (int64_t i = row * k; i < (row + 1) * k; ++i) {
        const double r = reference[i];
        const double d = r - static_cast<double>(value[i]);
        e += d * d;
        p += r * r;
      }
      error[static_cast<size_t>(row)] = e;
      power[static_cast<size_t>(row)] = p;
    }
  });
  double e = 0, p = 0;
  for (size_t row = 0; row < error.size(); ++row) {
    e += error[row];
    p += power[row];
  }
  return p == 0 ? (e == 0 ? 0 : 1) : e / p;
}

Result<Outcome> quantize_model(std::shared_ptr<const tensor::ModelWeights> source, const model::Architecture& arch,
                               const PipelineOptions& options, ThreadPool& pool) {
  return Pipeline(std::move(source), arch, options, pool).run();
}

}  // namespace tare::quantize
