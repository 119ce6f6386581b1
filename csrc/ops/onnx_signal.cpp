// Import of operators on signals: window functions, Fourier transforms (short ones as products with
// matrices of cosines and sines, those of a large prime factor by fast ones of another length), the
// mel scale, and cumulative products.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// More elements than this are not made at import.
constexpr int64_t kMostMade = int64_t{1} << 24;

/// A constant of real numbers.
class Table {
 public:
  Table(OnnxCall& c, DType dtype, std::vector<int64_t> dims) : known_{dtype, std::move(dims), {}} {
    int64_t count = 1;
    for (int64_t dim : known_.dims) {
      if (dim < 0) c.refuse("a size must not be negative");
      if (dim > 0 && count > kMostMade / dim)
        c.unsupported(str("a table made at import must have at most ", kMostMade, " elements"));
      count *= dim;
    }
    known_.elements.reserve(static_cast<size_t>(count));
  }
  void add(double value) {
    known_.elements.push_back(is_floating(known_.dtype) ? KnownNumber::real(value)
                                                        : KnownNumber(static_cast<int64_t>(value)));
  }
  Value* constant(OnnxCall& c) const { return c.constant(known_); }

 private:
  KnownValue known_;
};

// ---- window functions --------------------------------------------------------------------------

// a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n), where n is one less for a symmetric window
Values cosine_window(OnnxCall& c, double a0, double a1, double a2) {
  const int64_t size = c.fixed_integers(0).at(0);
  const DType dtype = c.dtype_attr("output_datatype", DType::Float32);
  const double period = static_cast<double>(c.flag("periodic", true) ? size : size - 1);
  Table table(c, dtype, {size});
  for (int64_t i = 0; i < size; ++i) {
    const double angle = kTurn * static_cast<double>(i) / period;
    table.add(a0 - a1 * std::cos(angle) + a2 * std::cos(2 * angle));
  }
  return {table.constant(c)};
}

Values import_hann(OnnxCall& c) { return cosine_window(c, 0.5, 0.5, 0); }
Values import_hamming(OnnxCall& c) { return cosine_window(c, 25.0 / 46, 21.0 / 46, 0); }
Values import_blackman(OnnxCall& c) { return cosine_window(c, 0.42, 0.5, 0.08); }

// ---- mel scale ---------------------------------------------------------------------------------

// Triangles over the bins of a spectrum, whose corners are equally far on the mel scale.
Values import_mel_weights(OnnxCall& c) {
  const int64_t bands = c.fixed_integers(0).at(0), length = c.fixed_integers(1).at(0),
                rate = c.fixed_integers(2).at(0);
  if (bands < 0 || length < 0 || rate <= 0)
    c.refuse("num_mel_bins and dft_length must not be negative, and sample_rate be positive");
  const int64_t bins = length / 2 + 1;
  Table table(c, c.dtype_attr("output_datatype", DType::Float32), {bins, bands});
  auto mel = [](double hertz) { return 2595 * std::log1p(hertz / 700) / std::log(10.0); };
  const double low = mel(c.fixed_numbers(3).at(0)), high = mel(c.fixed_numbers(4).at(0));
  const double step = (high - low) / static_cast<double>(bands + 2);
  std::vector<int64_t> corners;
  for (int64_t i = 0; i < bands + 2; ++i) {
    const double hertz =
        700 * std::expm1((static_cast<double>(i) * step + low) / 2595 * std::log(10.0));
    const double bin =
        std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate));
    if (!(bin >= 0 && bin < static_cast<double>(bins)))
      c.refuse("the edges must be within the spectrum");
    corners.push_back(static_cast<int64_t>(bin));
  }
  for (int64_t bin = 0; bin < bins; ++bin)
    for (size_t band = 0; band < static_cast<size_t>(bands); ++band) {
      const int64_t left = corners[band], top = corners[band + 1], right = corners[band + 2];
      double weight = 0;
      if (left <= bin && bin <= top)
        weight =
            left == top ? 1 : static_cast<double>(bin - left) / static_cast<double>(top - left);
      if (top <= bin && bin < right)
        weight = static_cast<double>(right - bin) / static_cast<double>(right - top);
      table.add(weight);
    }
  return {table.constant(c)};
}

// ---- Fourier transforms ------------------------------------------------------------------------

struct Transform {
  int64_t length = 0;  // of the whole signal
  int64_t given = 0;   // elements that are there; the others are 0
  bool inverse = false, one_sided = false;
  int64_t frequencies() const { return one_sided && !inverse ? length / 2 + 1 : length; }
};

// cos or sin of 2 pi i k / n as [elements of the signal, elements of the result]
Value* waves(OnnxCall& c, const Transform& t, bool sine, DType dtype,
             const std::vector<double>& factors) {
  Table table(c, dtype, {t.given, t.frequencies()});
  for (int64_t i = 0; i < t.given; ++i)
    for (int64_t k = 0; k < t.frequencies(); ++k) {
      const double angle =
          kTurn * static_cast<double>((i * k) % t.length) / static_cast<double>(t.length);
      table.add(factors.at(static_cast<size_t>(i)) * (sine ? std::sin(angle) : std::cos(angle)));
    }
  return table.constant(c);
}

// Whether a fast transform takes less than a product.
bool is_fast(int64_t length) {
  constexpr int64_t kShortest = 16, kLargestFactor = 13;
  if (length < kShortest) return false;
  for (int64_t factor = 2; factor <= kLargestFactor; ++factor)
    while (length % factor == 0) length /= factor;
  return length == 1;
}

// Whether a product takes longer than three fast transforms of up to four times the length.
bool is_long(int64_t length) { return length > 256; }

// The factor of each element of the signal.
std::vector<double> factors_of(const Transform& t) {
  std::vector<double> factors(static_cast<size_t>(t.given), 1.0);
  if (!t.inverse) return factors;
  for (size_t i = 0; i < factors.size(); ++i) {
    factors.at(i) = 1 / static_cast<double>(t.length);
    // The half that is not given mirrors the one that is, but for the first and the middle.
    const bool single = i == 0 || 2 * static_cast<int64_t>(i) == t.length;
    if (t.one_sided && !single) factors.at(i) *= 2;
  }
  return factors;
}

// Real and imaginary parts, [.., n, 1] each; none are 0.
struct Complex {
  Value *re = nullptr, *im = nullptr;

  Complex(Value* real, Value* imaginary) : re(real), im(imaginary) {}
  Complex(OnnxCall& c, Value* x) {
    const auto last = static_cast<int64_t>(x->rank()) - 1;
    re = c.slice(x, last, 0, 1);
    if (c.sizes().fix(x->dims.back()) == 2) im = c.slice(x, last, 1, 2);
  }
  Value* joined(OnnxCall& c) const {
    return c.concat({re, im}, static_cast<int64_t>(re->rank()) - 1);
  }
  Complex times(OnnxCall& c, const Complex& other) const {
    Value *real = c.emit("Mul", {re, other.re}), *imaginary = c.emit("Mul", {re, other.im});
    if (!im) return {real, imaginary};
    return {c.emit("Sub", {real, c.emit("Mul", {im, other.im})}),
            c.emit("Add", {imaginary, c.emit("Mul", {im, other.re})})};
  }
};

// exp(sign pi i k^2 / n) of the elements that `index` gives, each times its factor.
template <class Index, class Factor>
Complex chirps(OnnxCall& c, int64_t n, int64_t count, double sign, const Index& index,
               const Factor& factor) {
  Table cosines(c, DType::Float64, {count, 1}), sines(c, DType::Float64, {count, 1});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t k = index(i);
    const double angle = kTurn / 2 * static_cast<double>(k * k % (2 * n)) / static_cast<double>(n);
    cosines.add(factor(i) * std::cos(angle));
    sines.add(factor(i) * sign * std::sin(angle));
  }
  return {cosines.constant(c), sines.constant(c)};
}

// A transform of any length as a convolution with chirps, by fast ones (Bluestein, "A linear
// filtering approach to the computation of discrete Fourier transform", 1970): with
// 2 j k = j^2 + k^2 - (k - j)^2. The signal is in 64 bits; of a one-sided inverse transform the
// result is the real part.
Value* transformed_by_chirps(OnnxCall& c, Value* signal, const Transform& t) {
  const std::vector<double> factors = factors_of(t);
  const int64_t frequencies = t.frequencies(), n = t.length;
  const auto size =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(t.given + frequencies)));
  const double sign = t.inverse ? 1 : -1;
  const auto same = [](int64_t i) { return i; };
  const auto one = [](int64_t) { return 1.0; };
  const auto fast = [&](const Complex& x, bool inverse) {
    return Complex(c, c.emit("FourierTransform", {x.joined(c)},
                             {{"length", size}, {"inverse", inverse ? 1 : 0}, {"onesided", 0}}));
  };
  const Complex before = chirps(c, n, t.given, sign, same,
                                [&](int64_t i) { return factors.at(static_cast<size_t>(i)); });
  // From the first frequency on, and in front of it, where the filter ends.
  const Complex filter = chirps(
      c, n, size, -sign, [&](int64_t i) { return i < frequencies ? i : size - i; },
      [&](int64_t i) { return i < frequencies || size - i < t.given ? 1.0 : 0.0; });
  const Complex spectrum = fast(Complex(c, signal).times(c, before), false);
  Value* mixed = fast(spectrum.times(c, fast(filter, false)), true).joined(c);
  const auto axis = static_cast<int64_t>(mixed->rank()) - 2;
  const Complex result = Complex(c, c.slice(mixed, axis, 0, frequencies))
                             .times(c, chirps(c, n, frequencies, sign, same, one));
  return t.inverse && t.one_sided ? result.re : result.joined(c);
}

// The last dimension of `signal` [.., n, 1 or 2] holds real and imaginary parts, the one before it
// is transformed.
Value* transformed(OnnxCall& c, Value* signal, const Transform& t) {
  const auto last = static_cast<int64_t>(signal->rank()) - 1;
  const int64_t parts = c.sizes().fix(signal->dims.at(signal->dims.size() - 1));
  if (parts != 1 && parts != 2)
    c.refuse(str("the last size must be 1 or 2 (real and imaginary parts), but found ", parts));
  const DType dtype = signal->dtype, wide = DType::Float64;
  if (is_fast(t.length)) {
    const bool real = compute_dtype(dtype) == DType::Float32;
    Value* y = c.emit(
        "FourierTransform", {c.cast(signal, real ? DType::Float32 : wide)},
        {{"length", t.length}, {"inverse", t.inverse ? 1 : 0}, {"onesided", t.one_sided ? 1 : 0}});
    return c.cast(y, dtype);
  }
  // In 64 bits: the rounding of a plain sum is larger than that of a fast transform.
  signal = c.cast(signal, wide);
  if (is_long(t.length)) return c.cast(transformed_by_chirps(c, signal, t), dtype);
  const std::vector<double> factors = factors_of(t);
  Value* cosines = waves(c, t, false, wide, factors);
  Value* sines = waves(c, t, true, wide, factors);
  Dims rows = signal->dims;
  rows.pop_back();
  rows.insert(rows.end() - 1, DimExpr(1));  // [.., 1, n]
  auto times = [&](int64_t part, Value* table) {
    Value* x = c.reshape(c.slice(signal, last, part, part + 1), rows);
    Value* y = c.emit("MatMul", {x, table});
    Dims dims = y->dims;
    dims.erase(dims.end() - 2);
    dims.push_back(1);
    return c.reshape(y, dims);
  };
  Value* real = times(0, cosines);
  if (t.inverse && t.one_sided) {
    if (parts == 2) real = c.emit("Sub", {real, times(1, sines)});
    return c.cast(real, dtype);
  }
  Value* imaginary = times(0, sines);
  if (!t.inverse) imaginary = c.emit("Neg", {imaginary});
  if (parts == 2) {  // (x + iy)(cos -+ i sin)
    real = c.emit(t.inverse ? "Sub" : "Add", {real, times(1, sines)});
    imaginary = c.emit("Add", {imaginary, times(1, cosines)});
  }
  return c.cast(c.concat({real, imaginary}, last), dtype);
}

Values import_dft(OnnxCall& c) {
  Value* x = c.in(0);
  const size_t rank = x->rank();
  if (rank < 2) c.refuse("the signal must have rank 2 or more");
  int64_t axis;
  if (c.opset() >= 20)
    axis = c.axis(c.has(2) ? c.fixed_integers(2).at(0) : -2, rank);
  else
    axis = c.axis_attr("axis", 1, rank);
  if (axis == static_cast<int64_t>(rank) - 1)
    c.refuse("the last dimension holds real and imaginary parts and has no transform");
  Transform t;
  t.inverse = c.flag("inverse");
  t.one_sided = c.flag("onesided");
  if (t.one_sided && !t.inverse && c.sizes().fix(x->dims.at(x->dims.size() - 1)) != 1)
    c.refuse("a one-sided transform needs a real signal");
  const int64_t size = c.sizes().fix(x->dims.at(static_cast<size_t>(axis)));
  t.length = t.inverse && t.one_sided ? 2 * (size - 1) : size;
  if (c.has(1)) t.length = c.fixed_integers(1).at(0);
  if (t.length <= 0) c.refuse(str("the length must be positive, but found ", t.length));
  if (t.length > std::max(kMostMade, 2 * size))  // the factors of its turns are made beforehand
    c.unsupported(str("the length must be at most ", kMostMade, ", but found ", t.length));
  // Of a one-sided spectrum, only its half counts.
  t.given = std::min(size, t.inverse && t.one_sided ? t.length / 2 + 1 : t.length);
  std::vector<int64_t> order(rank);
  for (size_t i = 0; i < rank; ++i) order.at(i) = static_cast<int64_t>(i);
  std::swap(order.at(static_cast<size_t>(axis)), order.at(rank - 2));
  Value* signal = c.transpose(x, order);
  const auto at = static_cast<int64_t>(rank) - 2;
  if (t.given < size) signal = c.slice(signal, at, 0, t.given);
  return {c.transpose(transformed(c, signal, t), order)};
}

// signal [batch, n, 1 or 2], frame_step, window?, frame_length?
Values import_stft(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() == 2) x = c.reshape(x, {x->dims.at(0), x->dims.at(1), 1});
  if (x->rank() != 3) c.refuse("the signal must be [batch, length, 1 or 2]");
  const int64_t step = c.fixed_integers(1).at(0);
  Transform t;
  if (c.has(3))
    t.length = c.fixed_integers(3).at(0);
  else
    t.length = c.sizes().fix(c.has(2) ? c.dims(2).at(0) : x->dims.at(1));
  if (step <= 0 || t.length <= 0) c.refuse("frame_step and frame_length must be positive");
  if (c.has(2) && c.sizes().fix(c.dims(2).at(0)) != t.length)
    c.refuse("the window must have the length of a frame");
  t.given = t.length;
  t.one_sided = c.flag("onesided", true);
  if (t.one_sided && c.sizes().fix(x->dims.at(2)) != 1)
    c.refuse("a one-sided transform needs a real signal");
  if (!c.sizes().at_most(t.length, x->dims.at(1))) c.refuse("the signal must have a whole frame");
  const DimExpr frames = DimExpr::floor_div(x->dims.at(1) - DimExpr(t.length), step) + DimExpr(1);
  auto places = [&](const DimExpr& limit, int64_t delta, const Dims& dims) {
    Value* range = c.emit(
        "Range", {},
        {{"start", DimExpr(0)}, {"limit", limit}, {"delta", DimExpr(1)}, {"dtype", DType::Int64}});
    if (delta != 1) range = c.emit("Mul", {range, number(c, static_cast<double>(delta), range)});
    return c.reshape(range, dims);
  };
  Value* index =
      c.emit("Add", {places(frames, step, {frames, 1}), places(t.length, 1, {1, t.length})});
  Value* signal = c.emit("Gather", {x, index}, {{"axis", 1}});  // [batch, frames, length, parts]
  if (c.has(2))
    signal = c.emit("Mul", {signal, c.reshape(c.cast(c.in(2), x->dtype), {1, 1, t.length, 1})});
  return {transformed(c, signal, t)};
}

// ---- cumulative products and state ------------------------------------------------------------

// x moved by `places` along the axis, towards the end or the begin, with ones in front.
Value* moved(OnnxCall& c, Value* x, int64_t axis, int64_t places, bool to_end) {
  const DimExpr size = x->dims.at(static_cast<size_t>(axis));
  Value* part =
      to_end ? c.slice(x, axis, 0, size - DimExpr(places)) : c.slice(x, axis, places, size);
  Dims pads(2 * x->rank(), DimExpr(0));
  pads.at(static_cast<size_t>(axis) + (to_end ? 0 : x->rank())) = places;
  return c.emit("Pad", {part}, {{"pads", pads}, {"value", 1.0}});
}

// Products of 1, 2, 4, ... neighbours.
Values import_cumprod(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis(c.fixed_integers(1).at(0), x->rank());
  const int64_t size = c.sizes().fix(x->dims.at(static_cast<size_t>(axis)));
  if (size == 0) return {c.emit("Identity", {x})};
  const bool to_end = !c.flag("reverse");
  const DType dtype = x->dtype, wide = is_floating(dtype) ? compute_dtype(dtype) : dtype;
  Value* y = c.cast(x, wide);
  if (c.flag("exclusive")) y = moved(c, y, axis, 1, to_end);
  for (int64_t reach = 1; reach < size; reach *= 2)
    y = c.emit("Mul", {y, moved(c, y, axis, reach, to_end)});
  y = c.cast(y, dtype);
  return {y == x ? c.emit("Identity", {y}) : y};
}

// Each channel's convolution with the last of its past in front.
Values import_causal_conv(OnnxCall& c) {
  Value *x = c.in(0), *weights = c.in(1);
  if (x->rank() != 3 || weights->rank() != 3)
    c.refuse("input and weight must be [batch, channels, length] and [channels, 1, k]");
  const int64_t before = c.sizes().fix(weights->dims.at(2)) - 1;
  const int64_t channels = c.sizes().fix(x->dims.at(1));
  Value* padded;
  if (c.has(3)) {
    padded = before == 0 ? x : c.concat({c.cast(c.in(3), x->dtype), x}, 2);
  } else {
    padded = c.emit("Pad", {x}, {{"pads", Dims{0, 0, before, 0, 0, 0}}, {"value", 0.0}});
  }
  Value* y = c.emit(
      "Conv", {padded, weights, c.optional(2)},
      {{"strides", Dims{1}}, {"pads", Dims{0, 0}}, {"dilations", Dims{1}}, {"group", channels}});
  if (c.word("activation", {"none", "silu", "swish"}) != "none") y = c.emit("Silu", {y});
  const DimExpr size = padded->dims.at(2);
  Value* present = c.slice(padded, 2, size - DimExpr(before), size);
  return {y, c.cast(present, c.has(3) ? c.dtype(3) : x->dtype)};
}

REGISTER_ONNX({{"HannWindow", 17, import_hann},
               {"HammingWindow", 17, import_hamming},
               {"BlackmanWindow", 17, import_blackman},
               {"MelWeightMatrix", 17, import_mel_weights},
               {"DFT", 17, import_dft},
               {"STFT", 17, import_stft},
               {"CumProd", 26, import_cumprod},
               {"CausalConvWithState", 27, import_causal_conv}});

}  // namespace
}  // namespace ortmodule
