// The part of a model that depends on its weights alone, which a session computes once.
#pragma once

#include <vector>

#include "ir/exported_piece.h"

namespace ortmodule {

/// What shares no computation with other parts: most are a packed weight, so that imports which
/// differ in one of them share the rest.
struct ConstantPart {
  /// Its inputs are constants of the model, its outputs replace values of it.
  ExportedPiece piece;
  std::vector<size_t> inputs;  // by input of the piece: graph input of the model
};

/// Moves these parts out of `piece`, a packed form of convolutions' weights included: their results
/// become further constant inputs, at the end. What only they read is no input of any node any
/// more. A value that is larger than the weights it comes from stays in the model (an expanded
/// bias, a dequantized weight), as do views, which cost nothing; tables computed from a few numbers
/// (a filter) are taken if all of them have at most 2 MiB. Without `packs`, weights are not
/// packed.
std::vector<ConstantPart> take_constant_parts(ExportedPiece& piece, bool packs = true);

/// Parts as one, with the results of the first one first. Each weight that they read is one input.
ConstantPart joined(const std::vector<const ConstantPart*>& parts);

}  // namespace ortmodule
