// Import of operators that sample images at computed places: GridSample, DeformConv; AffineGrid,
// which makes the places, and Col2Im, which adds at places.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Value* range(OnnxCall& c, const DimExpr& size, const Dims& dims) {
  Value* values = c.emit(
      "Range", {},
      {{"start", DimExpr(0)}, {"limit", size}, {"delta", DimExpr(1)}, {"dtype", DType::Int64}});
  return c.reshape(values, dims);
}

Dims tail(const Dims& dims, size_t first) {
  return {dims.begin() + static_cast<int64_t>(first), dims.end()};
}

Value* plus(OnnxCall& c, Value* x, double value) { return c.emit("Add", {x, number(c, value, x)}); }
Value* times(OnnxCall& c, Value* x, double value) {
  return c.emit("Mul", {x, number(c, value, x)});
}

void require_rank(OnnxCall& c, size_t i, size_t rank) {
  if (c.in(i)->rank() != rank)
    c.refuse(str("operand ", i, " must have rank ", rank, ", but found rank ", c.in(i)->rank()));
}

// ---- places of an image ------------------------------------------------------------------------

enum class Outside { Zeros, Border, Reflection };

/// Images [images, channels, spatial...] as rows of channels, one per place.
struct Image {
  Value* rows = nullptr;  // [images, places, channels]
  DimExpr images, channels;
  Dims spatial;

  Image(OnnxCall& c, Value* x, DimExpr image_count, DimExpr channel_count, Dims sizes)
      : images(std::move(image_count)),
        channels(std::move(channel_count)),
        spatial(std::move(sizes)) {
    rows = c.transpose(c.reshape(x, {images, channels, product(spatial)}), {0, 2, 1});
  }
};

/// Where to read along one dimension: an index, and where it is within the image.
struct Tap {
  Value* index = nullptr;
  Value* inside = nullptr;  // null: everywhere
  Value* weight = nullptr;  // null: 1
};

// Mirrored at the borders until it is between them.
Value* reflected(OnnxCall& c, Value* at, const DimExpr& size, bool corners) {
  const DimExpr span = corners ? DimExpr::max(size - DimExpr(1), 1) : size;
  const double low = corners ? 0.0 : -0.5;
  Value* way = c.emit("Mod", {plus(c, at, -low), size_number(c, span * DimExpr(2), at->dtype)},
                      {{"fmod", 0}});
  Value* back = c.emit("Sub", {size_number(c, span * DimExpr(2), at->dtype), way});
  return plus(c, c.emit("Min", {way, back}), low);
}

// The tap at whole numbers `at`.
Tap tap_at(OnnxCall& c, Value* at, const DimExpr& size, Outside outside, bool corners) {
  Tap tap;
  Value* last = size_number(c, size - DimExpr(1), at->dtype);
  if (outside == Outside::Zeros)
    tap.inside = c.emit("And", {c.emit("GreaterOrEqual", {at, number(c, 0, at)}),
                                c.emit("LessOrEqual", {at, last})});
  if (outside == Outside::Reflection) at = c.emit("Round", {reflected(c, at, size, corners)});
  at = c.emit("Max", {c.emit("Min", {at, last}), number(c, 0, at)});
  Value* index = c.cast(at, DType::Int64);
  // What is no number becomes any integer.
  index = c.emit("Min", {index, size_number(c, size - DimExpr(1), DType::Int64)});
  tap.index = c.emit("Max", {index, c.literal(0, DType::Int64)});
  return tap;
}

using Taps = std::vector<Tap>;

// Weights of the neighbours -1, 0, 1, 2 (Keys, 1981, with a = -0.75).
Value* cubic_weight(OnnxCall& c, Value* distance, bool near) {
  constexpr double a = -0.75;
  Value* d = distance;
  if (near) {  // ((a + 2) d - (a + 3)) d d + 1
    Value* inner = plus(c, times(c, d, a + 2), -(a + 3));
    return plus(c, c.emit("Mul", {c.emit("Mul", {inner, d}), d}), 1);
  }
  // ((a d - 5 a) d + 8 a) d - 4 a
  Value* inner = plus(c, c.emit("Mul", {plus(c, times(c, d, a), -5 * a), d}), 8 * a);
  return plus(c, c.emit("Mul", {inner, d}), -4 * a);
}

// The taps that interpolate at real numbers `at` along a dimension.
Taps interpolated(OnnxCall& c, Value* at, const DimExpr& size, bool cubic, Outside outside,
                  bool corners) {
  Value* low = c.emit("Floor", {at});
  Value* part = c.emit("Sub", {at, low});
  Value* rest = c.emit("Sub", {number(c, 1, part), part});
  Taps taps;
  for (int step = cubic ? -1 : 0; step <= (cubic ? 2 : 1); ++step) {
    taps.push_back(tap_at(c, plus(c, low, step), size, outside, corners));
    Value*& weight = taps.back().weight;
    if (!cubic)
      weight = step == 0 ? rest : part;
    else if (step == -1 || step == 0)
      weight = cubic_weight(c, step == 0 ? part : plus(c, part, 1), step == 0);
    else
      weight = cubic_weight(c, step == 1 ? rest : plus(c, rest, 1), step == 1);
  }
  return taps;
}

// One tap for each combination of one per dimension: the index of a place of the image, where it is
// inside, and the product of the weights.
Taps combined(OnnxCall& c, const Dims& spatial, const std::vector<Taps>& taps) {
  size_t count = 1;
  for (const Taps& each : taps) count *= each.size();
  const auto both = [&](std::string_view op, Value* a, Value* b) {
    return !a ? b : !b ? a : c.pointwise(op, {a, b});
  };
  Taps places(count);
  for (size_t i = 0; i < count; ++i) {
    Tap& place = places[i];
    size_t rest = i;
    for (size_t d = 0; d < taps.size(); ++d) {
      const Tap& tap = taps[d][rest % taps[d].size()];
      rest /= taps[d].size();
      if (place.index)
        place.index = c.emit("Mul", {place.index, size_number(c, spatial[d], DType::Int64)});
      place.index = both("Add", place.index, tap.index);
      place.inside = both("And", place.inside, tap.inside);
      place.weight = both("Mul", place.weight, tap.weight);
    }
  }
  return places;
}

// The weighted sum of the taps' places: [images, channels, points], where the taps have `points`
// elements for each image. `factor` (null: 1) is for all taps of a point.
Value* interpolation(OnnxCall& c, const Image& image, const std::vector<Taps>& taps, Value* factor,
                     const DimExpr& points) {
  const Dims dims{image.images, 1, points};
  Values indices, weights;
  for (const Tap& place : combined(c, image.spatial, taps)) {
    Value* weight = c.cast(place.weight, image.rows->dtype);
    if (factor) weight = c.emit("Mul", {weight, factor});
    if (place.inside) weight = c.emit("Where", {place.inside, weight, number(c, 0, weight)});
    indices.push_back(c.reshape(place.index, dims));
    weights.push_back(c.reshape(weight, dims));
  }
  return c.emit("WeightedGather", {image.rows, c.concat(indices, 1), c.concat(weights, 1)});
}

// The elements of an x of any type at one tap for each dimension, the same way.
Value* nearest_elements(OnnxCall& c, const Image& image, const std::vector<Taps>& taps,
                        const DimExpr& points) {
  const Tap place = combined(c, image.spatial, taps).at(0);
  const DimExpr places = product(image.spatial), all = image.images * points;
  Value* first = c.emit(
      "Mul", {range(c, image.images, {image.images, 1}), size_number(c, places, DType::Int64)});
  Value* index = c.emit("Add", {c.reshape(place.index, {image.images, points}), first});
  Value* rows = c.reshape(image.rows, {image.images * places, image.channels});
  Value* row = c.emit("Gather", {rows, c.reshape(index, {all})}, {{"axis", 0}});
  if (place.inside)
    row = c.emit("Where", {c.reshape(place.inside, {all, 1}), row, number(c, 0, row)});
  return c.transpose(c.reshape(row, {image.images, points, image.channels}), {0, 2, 1});
}

// ---- GridSample --------------------------------------------------------------------------------

// A coordinate of [-1, 1] in elements of the image, brought inside as the padding says.
Value* placed(OnnxCall& c, Value* at, const DimExpr& size, bool corners, bool nearest,
              Outside outside) {
  at = plus(c, at, 1);
  if (corners) {
    at = c.emit("Mul", {times(c, at, 0.5), size_number(c, size - DimExpr(1), at->dtype)});
  } else {
    at = times(c, plus(c, c.emit("Mul", {at, size_number(c, size, at->dtype)}), -1), 0.5);
  }
  if (nearest) at = c.emit("Round", {at});
  if (outside == Outside::Zeros) return at;
  Value* low = number(c, corners ? 0.0 : -0.5, at);
  Value* last = size_number(c, size - DimExpr(1), at->dtype);
  Value* high = corners ? last : c.emit("Add", {last, number(c, 0.5, at)});
  Value* beyond = c.emit("Or", {c.emit("Less", {at, low}), c.emit("Greater", {at, high})});
  Value* brought = outside == Outside::Border
                       ? c.emit("Max", {c.emit("Min", {at, last}), number(c, 0, at)})
                       : reflected(c, at, size, corners);
  return c.emit("Where", {beyond, brought, at});
}

Outside padding_of(OnnxCall& c) {
  const std::string mode = c.word("padding_mode", {"zeros", "border", "reflection"});
  if (mode == "zeros") return Outside::Zeros;
  return mode == "border" ? Outside::Border : Outside::Reflection;
}

Values import_grid_sample(OnnxCall& c) {
  Value *x = c.in(0), *grid = c.in(1);
  if (x->rank() < 3 || grid->rank() != x->rank())
    c.refuse("x and grid must have the same rank, 3 or more");
  const size_t spatial = x->rank() - 2;
  if (c.sizes().fix(grid->dims.at(grid->dims.size() - 1)) != static_cast<int64_t>(spatial))
    c.refuse("the grid must have a coordinate for each spatial dimension");
  if (!c.sizes().equal(grid->dims.at(0), x->dims.at(0)))
    c.refuse("x and grid must have the same batch");
  // Operator set 16 has the names for images.
  const std::string mode = c.word("mode", {"linear", "bilinear", "cubic", "bicubic", "nearest"});
  const bool nearest = mode == "nearest", cubic = mode == "cubic" || mode == "bicubic";
  const DType dtype = x->dtype;
  if (!nearest && !is_floating(dtype)) c.refuse("an interpolated x must be of real numbers");
  const bool corners = c.flag("align_corners");
  const Outside outside = padding_of(c);
  const Dims outer(grid->dims.begin() + 1, grid->dims.end() - 1);
  const DimExpr batch = x->dims.at(0), places = product(outer);
  const DType wide = compute_dtype(dtype);
  const Image image(c, nearest ? x : c.cast(x, wide), batch, x->dims.at(1), tail(x->dims, 2));
  grid = c.cast(grid, compute_dtype(grid->dtype));
  std::vector<Taps> taps;
  for (size_t d = 0; d < spatial; ++d) {  // the last coordinate belongs to the first dimension
    const auto part = static_cast<int64_t>(spatial - 1 - d);
    Value* at = c.slice(grid, static_cast<int64_t>(grid->rank()) - 1, part, part + 1);
    // A cubic interpolation near the border reads neighbours beyond it, which the taps bring
    // inside.
    at = placed(c, c.reshape(at, {batch, places}), image.spatial[d], corners, nearest,
                cubic ? Outside::Zeros : outside);
    if (nearest)
      taps.push_back({tap_at(c, at, image.spatial[d], outside, corners)});
    else
      taps.push_back(interpolated(c, at, image.spatial[d], cubic, outside, corners));
  }
  Value* y = nearest ? nearest_elements(c, image, taps, places)
                     : interpolation(c, image, taps, nullptr, places);
  Dims dims{batch, x->dims.at(1)};
  dims.insert(dims.end(), outer.begin(), outer.end());
  return {c.reshape(c.cast(y, dtype), dims)};
}

// The coordinates of the places along a dimension, in [-1, 1]; the only one of a dimension whose
// ends are its corners is 1, as in onnxruntime.
Value* centred(OnnxCall& c, const DimExpr& size, DType dtype) {
  Value* i = c.cast(range(c, size, {size}), dtype);
  if (!c.flag("align_corners"))
    return plus(c, c.emit("Div", {plus(c, times(c, i, 2), 1), size_number(c, size, dtype)}), -1);
  Value* steps = size_number(c, DimExpr::max(size - DimExpr(1), 1), dtype);
  Value* left = c.emit("Sub", {size_number(c, size - DimExpr(1), dtype), i});
  return c.emit("Sub", {number(c, 1, i), c.emit("Div", {times(c, left, 2), steps})});
}

// theta [n, k, k + 1] times (x, y, .., 1) of each place. A row of the grid is x theta_x + theta_1,
// which all rows share, and the other coordinates times what theta has for them: a product of
// [rows, k] with [k, places of a row].
Values import_affine_grid(OnnxCall& c) {
  Value* theta = c.in(0);
  const Dims sizes = c.content_sizes(1);
  if (sizes.size() != 4 && sizes.size() != 5)
    c.refuse("size must be [N, C, H, W] or [N, C, D, H, W]");
  const Dims spatial = tail(sizes, 2);
  const auto rank = static_cast<int64_t>(spatial.size());
  const DType wide = compute_dtype(theta->dtype);
  const DimExpr batch = theta->dims.at(0), width = spatial.back();
  Value* given = c.cast(theta, wide);
  const auto column = [&](int64_t i) {
    return c.reshape(c.slice(given, 2, i, i + 1), {batch, 1, rank});
  };
  Value* x = c.reshape(centred(c, width, wide), {1, width, 1});
  Value* first =
      c.emit("Add", {c.emit("Mul", {x, column(0)}),
                     c.emit("Expand", {column(rank)}, {{"shape", Dims{batch, width, rank}}})});
  const DimExpr row = width * DimExpr(rank);
  const Dims outer(spatial.begin(), spatial.end() - 1);
  Values left{c.full(1.0, {product(outer), 1}, wide)}, right{c.reshape(first, {batch, 1, row})};
  for (int64_t d = rank - 1; d-- > 0;) {  // y comes before z
    const auto at = static_cast<size_t>(d);
    Dims along(outer.size(), DimExpr(1));
    along.at(at) = outer.at(at);
    Value* places = c.reshape(centred(c, outer.at(at), wide), along);
    places = c.emit("Expand", {places}, {{"shape", outer}});
    left.push_back(c.reshape(places, {product(outer), 1}));
    Value* all = c.emit("Expand", {column(rank - 1 - d)}, {{"shape", Dims{batch, width, rank}}});
    right.push_back(c.reshape(all, {batch, 1, row}));
  }
  Value* grid = c.emit("MatMul", {c.concat(left, 1), c.concat(right, 1)});
  Dims dims = spatial;
  dims.insert(dims.begin(), batch);
  dims.emplace_back(rank);
  return {c.reshape(c.cast(grid, theta->dtype), dims)};
}

// ---- DeformConv --------------------------------------------------------------------------------

std::vector<int64_t> list(OnnxCall& c, std::string_view name, size_t count, int64_t fallback) {
  std::vector<int64_t> numbers = c.integers(name);
  if (numbers.empty()) numbers.assign(count, fallback);
  if (numbers.size() != count)
    c.refuse(str("'", name, "' must have ", count, " numbers, but found ", numbers.size()));
  return numbers;
}

// [N, C, K, L]: x where each element of the window meets it, moved by the offsets
Value* deformed_windows(OnnxCall& c, Value* x, const Dims& window, const Dims& out) {
  const size_t spatial = window.size();
  const DimExpr groups = c.integer("offset_group", 1), batch = x->dims.at(0);
  const DimExpr per_group = DimExpr::floor_div(x->dims.at(1), groups), images = batch * groups;
  const DimExpr places = product(window), outputs = product(out);
  const std::vector<int64_t> strides = list(c, "strides", spatial, 1),
                             dilations = list(c, "dilations", spatial, 1),
                             pads = list(c, "pads", 2 * spatial, 0);
  const Image image(c, x, images, per_group, tail(x->dims, 2));
  const auto parts = static_cast<int64_t>(spatial);
  Value* offsets = c.reshape(c.cast(c.in(2), x->dtype), {images, places, parts, outputs});
  std::vector<Taps> taps;
  for (size_t d = 0; d < spatial; ++d) {
    const auto part = static_cast<int64_t>(d);
    Dims in_window(spatial, DimExpr(1)), in_output(spatial, DimExpr(1));
    in_window[d] = window.at(d);
    in_output[d] = out[d];
    Value* k = times(c, c.cast(range(c, window.at(d), in_window), x->dtype),
                     static_cast<double>(dilations.at(d)));
    Value* o =
        times(c, c.cast(range(c, out[d], in_output), x->dtype), static_cast<double>(strides.at(d)));
    k = c.reshape(c.emit("Expand", {k}, {{"shape", window}}), {1, places, 1});
    o = c.reshape(c.emit("Expand", {o}, {{"shape", out}}), {1, 1, outputs});
    Value* base = plus(c, c.pointwise("Add", {k, o}), -static_cast<double>(pads.at(d)));
    Value* offset = c.reshape(c.slice(offsets, 2, part, part + 1), {images, places, outputs});
    Value* at = c.pointwise("Add", {offset, base});
    taps.push_back(interpolated(c, at, image.spatial[d], false, Outside::Zeros, false));
  }
  Value* mask = c.has(4) ? c.cast(c.in(4), x->dtype) : nullptr;
  if (mask) mask = c.reshape(mask, {images, places, outputs});
  Value* y = interpolation(c, image, taps, mask, places * outputs);
  return c.reshape(y, {batch, x->dims.at(1), places, outputs});
}

Values import_deform_conv(OnnxCall& c) {
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value *x = c.cast(c.in(0), wide), *weights = c.cast(c.in(1), wide);
  const int64_t groups = c.integer("group", 1);
  if (x->rank() < 3) c.refuse(str("x must have rank 3 or more, but found ", x->rank()));
  require_rank(c, 1, x->rank());
  require_rank(c, 2, x->rank());
  if (groups <= 0 || c.integer("offset_group", 1) <= 0)
    c.refuse("group and offset_group must be positive");
  const Dims window = tail(weights->dims, 2), out = tail(c.dims(2), 2);
  const DimExpr outputs = product(out), filters = weights->dims.at(0);
  Value* windows = deformed_windows(c, x, window, out);
  const DimExpr depth = weights->dims.at(1) * product(window);
  windows = c.reshape(windows, {x->dims.at(0), groups, depth, outputs});
  const DimExpr per_group = DimExpr::floor_div(filters, groups);
  Value* y = c.emit("MatMul", {c.reshape(weights, {1, groups, per_group, depth}), windows});
  Dims dims{x->dims.at(0), filters};
  dims.insert(dims.end(), out.begin(), out.end());
  y = c.reshape(y, dims);
  if (c.has(3)) {
    Dims per_channel(dims.size(), DimExpr(1));
    per_channel.at(1) = filters;
    y = c.emit("Add", {y, c.reshape(c.cast(c.in(3), wide), per_channel)});
  }
  return {c.cast(y, dtype)};
}

// ---- Col2Im ------------------------------------------------------------------------------------

// The place of each element of each window in the padded image, row-major.
std::vector<int64_t> window_places(const std::vector<int64_t>& window,
                                   const std::vector<int64_t>& blocks,
                                   const std::vector<int64_t>& strides,
                                   const std::vector<int64_t>& dilations,
                                   const std::vector<int64_t>& padded) {
  std::vector<int64_t> places{0};
  for (const bool in_window : {true, false}) {
    const std::vector<int64_t>& sizes = in_window ? window : blocks;
    int64_t pitch = 1;
    std::vector<int64_t> offsets{0};
    for (size_t d = sizes.size(); d-- > 0;) {
      std::vector<int64_t> wider;
      for (int64_t i = 0; i < sizes.at(d); ++i)
        for (int64_t offset : offsets)
          wider.push_back(offset + i * (in_window ? dilations.at(d) : strides.at(d)) * pitch);
      offsets = std::move(wider);
      pitch *= padded[d];
    }
    std::vector<int64_t> both;
    for (int64_t place : places)
      for (int64_t offset : offsets) both.push_back(place + offset);
    places = std::move(both);
  }
  return places;
}

// Windows [N, C, window..., blocks...] that tile their image: each block beside its own elements.
Value* joined_tiles(OnnxCall& c, Value* x, const Dims& padded, const std::vector<int64_t>& window,
                    const std::vector<int64_t>& blocks) {
  const auto spatial = static_cast<int64_t>(window.size());
  Dims apart{padded.at(0), padded.at(1)};
  apart.insert(apart.end(), window.begin(), window.end());
  apart.insert(apart.end(), blocks.begin(), blocks.end());
  std::vector<int64_t> order{0, 1};
  for (int64_t d = 0; d < spatial; ++d) {
    order.push_back(2 + spatial + d);
    order.push_back(2 + d);
  }
  return c.reshape(c.transpose(c.reshape(x, apart), order), padded);
}

Values import_col2im(OnnxCall& c) {
  constexpr int64_t kMostPlaces = int64_t{1} << 30;
  Value* x = c.in(0);
  const std::vector<int64_t> image = c.fixed_integers(1), window = c.fixed_integers(2);
  const size_t spatial = image.size();
  if (x->rank() != 3 || window.size() != spatial || spatial == 0)
    c.refuse("x must be [N, C, L], and image_shape and block_shape have the same length");
  const std::vector<int64_t> strides = list(c, "strides", spatial, 1),
                             dilations = list(c, "dilations", spatial, 1),
                             pads = list(c, "pads", 2 * spatial, 0);
  const int64_t given = c.sizes().fix(x->dims.at(2));
  std::vector<int64_t> padded, blocks;
  Dims dims{x->dims.at(0), 0}, crop(2 * (spatial + 2), DimExpr(0));
  int64_t elements = 1, all_blocks = 1;
  for (size_t d = 0; d < spatial; ++d) {
    const int64_t before = pads.at(d), after = pads.at(spatial + d);
    for (const int64_t number : {image[d], window[d], strides[d], dilations[d], before, after})
      if (number > kMostPlaces || number < -kMostPlaces)
        c.unsupported(str("sizes and pads must be at most ", kMostPlaces, ", but found ", number));
    padded.push_back(image[d] + before + after);
    if (window[d] <= 0 || strides[d] <= 0 || dilations[d] <= 0 ||
        dilations[d] * (window[d] - 1) >= padded[d])
      c.refuse("a window must be within the padded image");
    blocks.push_back((padded[d] - dilations[d] * (window[d] - 1) - 1) / strides[d] + 1);
    elements = std::min(elements * window[d], kMostPlaces + 1);
    all_blocks = std::min(all_blocks * blocks[d], kMostPlaces + 1);
    dims.emplace_back(padded[d]);
    crop[d + 2] = -before;
    crop[spatial + 4 + d] = -after;
  }
  if (given != all_blocks) c.refuse(str("x must have ", all_blocks, " blocks, but found ", given));
  if (elements > kMostPlaces || elements * all_blocks > kMostPlaces)
    c.unsupported(str("windows must have at most ", kMostPlaces, " elements together"));
  dims.at(1) = DimExpr::floor_div(x->dims.at(1), elements);
  const bool crops = std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad != 0; });
  const auto cropped = [&](Value* y) -> Values {
    if (!crops) return {y};
    return {c.emit("Pad", {y}, {{"pads", crop}, {"value", 0.0}})};
  };
  bool tiled = strides == window;
  for (size_t d = 0; d < spatial; ++d)
    tiled = tiled && (dilations[d] == 1 || window[d] == 1) && blocks[d] * window[d] == padded[d];
  if (tiled) return cropped(joined_tiles(c, x, dims, window, blocks));
  const std::vector<int64_t> places = window_places(window, blocks, strides, dilations, padded);
  const auto count = static_cast<int64_t>(places.size());
  std::string bytes(reinterpret_cast<const char*>(places.data()), places.size() * sizeof(int64_t));
  Value* index = c.weight({DType::Int64, {count}, std::move(bytes)});
  const DimExpr planes = dims.at(0) * dims.at(1);
  Value* y = c.emit("GatherGrad", {c.reshape(x, {planes, count}), index},
                    {{"axis", 1}, {"size", product(tail(dims, 2))}, {"padding_idx", -1}});
  return cropped(c.reshape(y, dims));
}

REGISTER_ONNX({{"GridSample", 16, import_grid_sample},
               {"AffineGrid", 20, import_affine_grid},
               {"DeformConv", 19, import_deform_conv},
               {"Col2Im", 18, import_col2im}});

}  // namespace
}  // namespace ortmodule
