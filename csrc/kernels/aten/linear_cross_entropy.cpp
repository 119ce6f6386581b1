// LinearCrossEntropy in tiles of rows: scores by the kernels of Gemm (by torch's GEMM on CUDA and
// in 16 bits), losses and their gradient by the kernels of SoftmaxCrossEntropyLoss, then the tile's
// share of unit_dx and unit_dw. One tile of scores exists at a time. Its size follows from the
// shape alone, so the sums have one order. Scores of 16 bits are widened first, as torch does under
// autocast, on a GPU within the kernels of the loss; the gradient of a row is not divided by the
// mean's divisor until it is wide, since float16 would lose it. On CUDA the divisor stays on the
// device, where nothing waits for it: gradients of scores are divided by it, or those of float16
// the results at the end.
// The number of classes may be odd, as GPT-2's 50,257. For 16 bits cuBLAS then has kernels of a
// third of the rate, so rows of scores lie a multiple of 128 bytes apart, and the last classes,
// which fill no vector of 16 bytes, have products of their own.
// On a CPU tiles consist of the rows whose labels count. They are gathered where their part of
// unit_dx will be, which is computed last.
#include <ATen/ops/addmm.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/counted_rows.h"
#include "kernels/aten/loss_head_tiles.h"
#include "kernels/dtype_dispatch.h"
#include "kernels/scalar_math.h"

namespace ortmodule {
namespace {

using namespace loss_head;

template <Device device>
std::shared_ptr<const void> prepare_head(const StepFacts& facts) {
  return std::make_shared<Prepared>(facts, device);
}

template <Device device>
size_t head_workspace(const StepFacts& facts) {
  return Prepared(facts, device).workspace.bytes;
}

/// What the mean divides by: the weights of the labels that count.
struct Divisor {
  double sum = 0;
  int64_t counted = 0;

  Divisor(const TensorView& labels, const TensorView& weights, int64_t ignore_index) {
    const int64_t rows = labels.element_count();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t label =
          labels.dtype == DType::Int64 ? labels.as<int64_t>()[row] : labels.as<int32_t>()[row];
      if (label == ignore_index) continue;
      ++counted;
      sum += weights.data ? weight(weights, label) : 1.0;
    }
  }

 private:
  static double weight(const TensorView& weights, int64_t label) {
    if (label < 0 || label >= weights.sizes[0]) return 0;  // the loss kernel says which label
    double value = 0;
    dispatch_float(weights.dtype,
                   [&]<class T> { value = static_cast<double>(computed(weights.as<T>()[label])); });
    return value;
  }
};

/// The same on the device: 0-dimensional tensors of the wide type.
struct DeviceDivisor {
  at::Tensor sum;
  at::Tensor scale;  // 1 / sum, but 0 where no label counts: the loss is NaN, its gradient zero

  DeviceDivisor(const TensorView& label_view, const TensorView& weights, int64_t ignore_index,
                DType wide) {
    const at::Tensor labels = as_tensor(label_view);
    const at::Tensor counts = at::ne(labels, ignore_index);
    if (weights.data) {
      const at::Tensor safe = at::where(counts, labels, 0).to(at::kLong);
      const at::Tensor each = as_tensor(weights).to(aten_type(wide)).index_select(0, safe);
      sum = each.mul_(counts).sum();
    } else {
      sum = counts.sum().to(aten_type(wide));
    }
    scale = at::where(counts.any(), sum.reciprocal(), 0.0).to(aten_type(wide));
  }
};

class Head {
 public:
  Head(const KernelArgs& args, const Prepared& p)
      : args_(args), p_(p), s_(p.shape), base_(static_cast<char*>(args.workspace)) {
    w_ = as_tensor(args.in[kW]);
    if (s_.trans_b) w_ = w_.t();  // [channels, classes]
  }

  void run() {
    ones().fill_(1);
    number(p_.workspace.dloss).fill_(s_.unit);
    if (s_.rows == 0) clear();
    if (p_.device == Device::CPU) {
      run_on_host();
    } else {
      run_on_device();
    }
  }

 private:
  template <class AddLosses>
  void for_each_tile(const AddLosses& add_losses) {
    const bool gradient = wanted(kUnitDx) || wanted(kUnitDw) || wanted(kUnitDbias);
    for (int64_t begin = 0; begin < s_.rows; begin += s_.tile_rows) {
      const int64_t count = std::min(s_.tile_rows, s_.rows - begin);
      write_scores(begin, count);
      add_losses(begin, count);
      if (gradient) write_gradients(begin, count);
    }
  }

  /// Whether labels are ignored, and tiles of the other rows save something.
  template <class AddLosses>
  bool visit_counted_rows(const AddLosses& add_losses) {
    const TensorView& x = args_.in[kX];
    if (x.strides[0] != s_.channels || x.strides[1] != 1) return false;
    CountedRows counted(x, args_.in[kLabels], p_.ignore_index);
    if (counted.count() + s_.step > s_.rows) return false;
    for_each_gathered_tile(counted, add_losses);
    return true;
  }

  template <class AddLosses>
  void for_each_gathered_tile(CountedRows& counted, const AddLosses& add_losses) {
    if (counted.count() == 0) clear();
    const bool gradient = wanted(kUnitDx) || wanted(kUnitDw) || wanted(kUnitDbias);
    for (int64_t begin = 0; begin < counted.count(); begin += s_.tile_rows) {
      const int64_t count = s_.padded(counted.count() - begin, begin);
      gathered_ = args_.in[kX];
      gathered_.data = wanted(kUnitDx) ? result(kUnitDx).select(0, begin).data_ptr()
                                       : base_ + p_.workspace.gathered_x;
      gathered_begin_ = begin;
      counted.gather(count, gathered_.data, base_ + p_.workspace.gathered_labels);
      write_scores(begin, count);
      add_losses(begin, count);
      if (gradient) write_gradients(begin, count);
    }
    if (wanted(kUnitDx)) counted.spread(args_.out[kUnitDx]);
  }

  void run_on_host() {
    const Divisor divisor(args_.in[kLabels], operand(kWeights), p_.ignore_index);
    // Where no label counts the loss is NaN, but the gradient is zero.
    scale_ = !p_.mean ? 1.0 : divisor.counted == 0 ? 0.0 : 1.0 / divisor.sum;
    if (!p_.products.empty()) {  // these types may scale the scores' gradient already
      number(p_.workspace.dloss).fill_(scale_);
      scale_ = 1.0;
    }
    double total = 0;
    const auto add_losses = [&](int64_t begin, int64_t count) { total += losses(begin, count); };
    if (!visit_counted_rows(add_losses)) for_each_tile(add_losses);
    if (!wanted(kLoss)) return;  // recomputed for its unit gradients
    const double loss = p_.mean ? total / divisor.sum : total;
    dispatch_float(args_.out[kLoss].dtype,
                   [&]<class T> { *args_.out[kLoss].as<T>() = stored<T>(loss); });
  }

  void run_on_device() {
    scale_ = 1 / s_.unit;
    std::optional<DeviceDivisor> divisor;
    if (p_.mean) divisor.emplace(args_.in[kLabels], operand(kWeights), p_.ignore_index, s_.wide);
    // Gradients of scores are divided at once, unless their type is too narrow for that.
    const bool divides_scores = divisor && s_.unit == 1;
    if (divides_scores) number(p_.workspace.dloss).copy_(divisor->scale);
    at::Tensor total = at::zeros({}, engine_options(s_.wide));
    for_each_tile([&](int64_t begin, int64_t count) {
      TileViews v;
      run_losses(v, begin, count);
      total.add_(as_tensor(v.losses).sum());
    });
    if (wanted(kLoss)) result(kLoss).copy_(divisor ? total.div(divisor->sum) : total);
    if (!divisor || divides_scores) return;
    for (size_t i : {kUnitDx, kUnitDw, kUnitDbias})
      if (wanted(i)) result(i).mul_(divisor->scale);
  }

  bool wanted(size_t result) const { return args_.facts.node().output_used[result]; }
  TensorView operand(size_t i) const { return i < args_.in.size() ? args_.in[i] : TensorView{}; }

  TensorView view(size_t at, DType dtype, const std::array<int64_t, 2>& sizes,
                  const std::array<int64_t, 2>& strides, int rank) const {
    return {base_ + at, dtype, rank, sizes.data(), strides.data()};
  }
  at::Tensor matrix(size_t at, DType dtype, int64_t rows, int64_t columns, int64_t stride) const {
    const std::array<int64_t, 2> sizes{rows, columns}, strides{stride, 1};
    return as_tensor(view(at, dtype, sizes, strides, 2));
  }
  at::Tensor ones() const {
    const std::array<int64_t, 2> sizes{s_.tile_rows, 1}, strides{1, 1};
    return as_tensor(view(p_.workspace.ones, s_.wide, sizes, strides, 1));
  }
  at::Tensor number(size_t at) const { return as_tensor(view(at, s_.wide, {}, {}, 0)); }
  at::Tensor scores(int64_t count) const {
    return matrix(p_.workspace.scores, s_.scored, count, s_.classes, s_.row_stride);
  }
  at::Tensor narrow(int64_t count) const {
    if (!s_.copies()) return scores(count);
    return matrix(p_.workspace.narrow, s_.dtype, count, s_.classes, s_.row_stride);
  }
  at::Tensor x_rows(int64_t begin, int64_t count) const {
    if (gathered_.data) return as_tensor(gathered_).narrow(0, begin - gathered_begin_, count);
    return as_tensor(args_.in[kX]).narrow(0, begin, count);
  }
  at::Tensor result(size_t i) const { return as_tensor(args_.out[i]); }

  void clear() {
    for (size_t i : {kUnitDx, kUnitDw, kUnitDbias})
      if (wanted(i)) result(i).zero_();
  }

  void write_scores(int64_t begin, int64_t count) {
    if (const TileProducts* own = products(count)) {
      void* const to = base_ + p_.workspace.scores;
      void *const x = x_address(begin), *const w = args_.in[kW].data;
      if (void* const bias = operand(kBias).data)
        run_product(own->scores, {x, w, bias}, to);
      else
        run_product(own->scores, {x, w}, to);
      return;
    }
    for_each_class_part([&](int64_t first, int64_t classes) {
      at::Tensor out = narrow(count).narrow(1, first, classes);
      const at::Tensor w = w_.narrow(1, first, classes);
      if (operand(kBias).data) {
        const at::Tensor bias = as_tensor(args_.in[kBias]).narrow(0, first, classes);
        at::addmm_out(out, bias, x_rows(begin, count), w);
      } else {
        at::mm_out(out, x_rows(begin, count), w);
      }
    });
    if (s_.copies()) scores(count).copy_(narrow(count));
  }

  /// body(first, count) for the classes in whole vectors, then for the rest.
  template <class Body>
  void for_each_class_part(const Body& body) const {
    if (s_.whole_classes > 0) body(int64_t{0}, s_.whole_classes);
    if (s_.whole_classes < s_.classes) body(s_.whole_classes, s_.classes - s_.whole_classes);
  }

  /// Runs a kernel on the first `count` rows of the tile; views in the order of its operands.
  void run_on_tile(const TileKernel& tile, std::span<const TensorView> in,
                   std::span<const TensorView> out) const {
    tile.kernel->run({tile.facts,
                      in,
                      out,
                      base_ + p_.workspace.row_scratch,
                      tile.prepared.get(),
                      args_.context,
                      {}});
  }

  /// Operands and result at these addresses, laid out as the kernel was told.
  void run_product(const TileKernel& tile, std::initializer_list<void*> in, void* out) const {
    const auto view_of = [](const OperandFacts& operand, void* data) {
      const Layout& layout = operand.layout;
      return TensorView{data, operand.dtype, static_cast<int>(layout.sizes.size()),
                        layout.sizes.data(), layout.strides.data()};
    };
    std::array<TensorView, 3> views;
    size_t count = 0;
    for (void* data : in) {
      views[count] = view_of(tile.facts.inputs[count], data);
      ++count;
    }
    const TensorView result = view_of(tile.facts.outputs[0], out);
    run_on_tile(tile, {views.data(), count}, {&result, 1});
  }

  /// How the products of a tile are made; null: by torch.
  const TileProducts* products(int64_t count) const {
    const auto found = std::find_if(p_.products.begin(), p_.products.end(),
                                    [&](const TileProducts& each) { return each.rows == count; });
    return found == p_.products.end() ? nullptr : &*found;
  }
  void* x_address(int64_t begin) const { return x_rows(begin, 1).data_ptr(); }

  struct TileViews {
    std::array<int64_t, 2> sizes, strides;
    TensorView scores, labels, losses, log_sum_exp;
  };
  void fill_views(TileViews& v, int64_t begin, int64_t count) const {
    v.sizes = {count, s_.classes};
    v.strides = {s_.row_stride, 1};
    const int64_t* row_stride = v.strides.data() + 1;
    v.scores = view(p_.workspace.scores, s_.scored, v.sizes, v.strides, 2);
    v.labels = args_.in[kLabels];
    v.labels.sizes = v.sizes.data();
    if (gathered_.data)
      v.labels.data = base_ + p_.workspace.gathered_labels;
    else
      v.labels.data = v.labels.as<char>() + begin * static_cast<int64_t>(size_of(v.labels.dtype));
    v.losses = {base_ + p_.workspace.losses, s_.wide, 1, v.sizes.data(), row_stride};
    v.log_sum_exp = {base_ + p_.workspace.log_sum_exp, s_.wide, 1, v.sizes.data(), row_stride};
  }

  void run_losses(TileViews& v, int64_t begin, int64_t count) const {
    fill_views(v, begin, count);
    const std::array<TensorView, 3> in{v.scores, v.labels, operand(kWeights)};
    const std::array<TensorView, 2> out{v.losses, v.log_sum_exp};
    run_on_tile(p_.loss, in, out);
  }

  double losses(int64_t begin, int64_t count) const {
    TileViews v;
    run_losses(v, begin, count);
    double sum = 0;
    dispatch_float(s_.wide, [&]<class T> {
      for (int64_t row = 0; row < count; ++row)
        sum += static_cast<double>(computed(v.losses.as<T>()[row]));
    });
    return sum;
  }

  void write_gradients(int64_t begin, int64_t count) {
    TileViews v;
    fill_views(v, begin, count);
    const TensorView dloss{base_ + p_.workspace.dloss, s_.wide, 0, nullptr, nullptr};
    const std::array<TensorView, 5> in{dloss, v.scores, v.labels, operand(kWeights), v.log_sum_exp};
    run_on_tile(p_.gradient, in, {&v.scores, 1});
    const at::Tensor dscores = scores(count);
    if (s_.copies()) narrow(count).copy_(dscores);
    const double beta = begin == 0 ? 0.0 : 1.0;
    if (wanted(kUnitDw)) add_dw(begin, count, beta);
    if (wanted(kUnitDbias)) add_dbias(dscores, beta);
    if (wanted(kUnitDx)) add_dx(begin, count);
  }

  void add_dbias(const at::Tensor& dscores, double beta) {
    at::Tensor dbias = result(kUnitDbias);
    if (dscores.scalar_type() == dbias.scalar_type()) {
      at::addmv_out(dbias, dbias, dscores.t(), ones().narrow(0, 0, dscores.size(0)), beta, scale_);
    } else {
      if (beta == 0.0) dbias.zero_();
      dbias.add_(at::sum(dscores, 0, false, dbias.scalar_type()), scale_);
    }
  }

  void add_dx(int64_t begin, int64_t count) {
    at::Tensor dx = result(kUnitDx).narrow(0, begin, count);
    if (const TileProducts* own = products(count)) {
      run_product(own->dx, {base_ + p_.workspace.scores, args_.in[kW].data}, dx.data_ptr());
      return;
    }
    if (!s_.widens()) {  // on CUDA
      at::addmm_out(dx, dx, narrow(count), w_.t(), 0, scale_);
      return;
    }
    if (dx.is_cuda()) {
      for_each_class_part([&](int64_t first, int64_t classes) {
        const at::Tensor dscores = narrow(count).narrow(1, first, classes);
        const at::Tensor w = w_.narrow(1, first, classes).t();
        at::addmm_out(dx, dx, dscores, w, dx.scalar_type(), first == 0 ? 0 : 1, scale_);
      });
      return;
    }
    at::Tensor product =
        s_.copies() ? matrix(p_.workspace.narrow_dx, s_.dtype, count, s_.channels, s_.channels)
                    : at::empty({count, s_.channels}, engine_options(s_.dtype));
    at::mm_out(product, narrow(count), w_.t());
    dx.copy_(product);
    if (scale_ != 1.0) dx.mul_(scale_);
  }

  /// On a GPU products of 16 bits are many times faster than those of float32 and give float32 too.
  void add_dw(int64_t begin, int64_t count, double beta) {
    at::Tensor dw = result(kUnitDw);
    if (const TileProducts* own = products(count)) {
      void *left = base_ + p_.workspace.scores, *right = x_address(begin), *to = dw.data_ptr();
      if (!s_.trans_b) std::swap(left, right);
      if (beta == 0.0)
        run_product(own->dw, {left, right}, to);
      else
        run_product(own->more_dw, {left, right, to}, to);
      return;
    }
    if (s_.dw_classes > 0) return add_narrow_dw(dw, begin, count, beta);
    if (s_.widens() && dw.is_cuda()) return add_mixed_dw(dw, begin, count, beta);
    // The copies in the wide type are made under the emulation only.
    const at::Tensor x = wide_x(begin, count), dscores = scores(count).to(dw.scalar_type());
    const at::Tensor a = s_.trans_b ? dscores.t() : x.t();
    at::addmm_out(dw, dw, a, s_.trans_b ? x : dscores, beta, scale_);
  }

  /// Products of 16 bits whose results are added in the wide type.
  void add_mixed_dw(const at::Tensor& dw, int64_t begin, int64_t count, double beta) {
    const at::Tensor x = x_rows(begin, count);
    for_each_class_part([&](int64_t first, int64_t classes) {
      at::Tensor to = dw.narrow(s_.trans_b ? 0 : 1, first, classes);
      const at::Tensor dscores = narrow(count).narrow(1, first, classes);
      const at::Tensor a = s_.trans_b ? dscores.t() : x.t();
      at::addmm_out(to, to, a, s_.trans_b ? x : dscores, dw.scalar_type(), beta, scale_);
    });
  }

  /// Products of 16 bits, added in the wide type a few classes at a time.
  void add_narrow_dw(const at::Tensor& dw, int64_t begin, int64_t count, double beta) {
    const at::Tensor x = x_rows(begin, count);
    for (int64_t first = 0; first < s_.classes; first += s_.dw_classes) {
      const int64_t classes = std::min(s_.dw_classes, s_.classes - first);
      const at::Tensor dscores = narrow(count).narrow(1, first, classes);
      const int64_t rows = s_.trans_b ? classes : s_.channels;
      const int64_t columns = s_.trans_b ? s_.channels : classes;
      at::Tensor part = matrix(p_.workspace.narrow_dw, s_.dtype, rows, columns, columns);
      at::Tensor to = dw.narrow(s_.trans_b ? 0 : 1, first, classes);
      if (s_.trans_b)
        at::mm_out(part, dscores.t(), x);
      else
        at::mm_out(part, x.t(), dscores);
      if (beta == 0.0) to.zero_();
      to.add_(part, scale_);
    }
  }

  at::Tensor wide_x(int64_t begin, int64_t count) const {
    const at::Tensor x = x_rows(begin, count);
    if (!s_.copies()) return x.to(aten_type(s_.wide));
    at::Tensor wide = matrix(p_.workspace.wide_x, s_.wide, count, s_.channels, s_.channels);
    wide.copy_(x);
    return wide;
  }

  const KernelArgs& args_;
  const Prepared& p_;
  const HeadShape& s_;
  char* base_;
  at::Tensor w_;
  double scale_ = 1.0;   // of the gradients, where it is known before they are summed
  TensorView gathered_;  // rows of x of a tile, if they are gathered
  int64_t gathered_begin_ = 0;
};

void run_head(const KernelArgs& args) {
  Head(args, *static_cast<const Prepared*>(args.prepared)).run();
}

Reason head_unsupported(const StepFacts& facts) {
  const DType labels = facts.inputs[kLabels].dtype;
  if (labels != DType::Int64 && labels != DType::Int32) return "labels are not int64 or int32";
  return {};
}

Reason head_unsupported_on_cuda(const StepFacts& facts) {
  for (const char* op : {"SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"}) {
    const std::vector<const KernelDef*> kernels = kernels_of(op);
    const bool runs = std::any_of(kernels.begin(), kernels.end(), [](const KernelDef* kernel) {
      return kernel->device == Device::CUDA;
    });
    if (!runs) return str("there is no kernel of ", op);
  }
  return head_unsupported(facts);
}

/// What torch allocates on a GPU: the divisor's terms while they are summed (two labels, a weight
/// and a flag per row), and a tile's share of unit_dbias.
size_t head_library_bytes(const StepFacts& facts) {
  constexpr size_t kPerRow = 2 * sizeof(int64_t) + sizeof(double) + sizeof(bool);
  constexpr size_t kNumbers = 8 * 512;  // 0-dimensional tensors in the allocator's smallest blocks
  const size_t divisor =
      static_cast<size_t>(element_count(facts.inputs[kLabels].layout.sizes)) * kPerRow + kNumbers;
  const HeadShape s(facts, Device::CUDA);
  const bool sums = s.widens() && !s.copies() && operand_or_absent(facts, kBias).dtype == s.dtype;
  return std::max(divisor, sums ? kNumbers + static_cast<size_t>(s.classes) * size_of(s.wide) : 0);
}

KernelDef head_kernel() {
  return {.op = "LinearCrossEntropy",
          .name = "linear_cross_entropy_aten",
          .dtypes = kAllFloats,
          .run = run_head,
          .unsupported = head_unsupported,
          .workspace_bytes = head_workspace<Device::CPU>,
          .prepare = prepare_head<Device::CPU>,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Contiguous,
                          LayoutRule::Contiguous, LayoutRule::Contiguous},
          .leaves_out_unused = true};
}

KernelDef head_kernel_on_cuda() {
  KernelDef kernel = head_kernel();
  kernel.device = Device::CUDA;
  kernel.unsupported = head_unsupported_on_cuda;
  kernel.workspace_bytes = head_workspace<Device::CUDA>;
  kernel.library_bytes = head_library_bytes;
  kernel.prepare = prepare_head<Device::CUDA>;
  return kernel;
}

const KernelRegistrar on_cpu(head_kernel());
const KernelRegistrar on_cuda(head_kernel_on_cuda());

}  // namespace
}  // namespace ortmodule
