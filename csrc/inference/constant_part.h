// The part of a model that depends on its weights alone, which a session computes once.
#pragma once

#include <optional>
#include <vector>

#include "ir/exported_piece.h"

namespace ortmodule {

struct ConstantPart {
  /// Its inputs are constants of the model, its outputs replace values of it.
  ExportedPiece piece;
  std::vector<size_t> inputs;  // by input of the piece: graph input of the model
};

/// Moves that part out of `piece`, a packed form of convolutions' weights included: its results
/// become further constant inputs, at the end. What only it read is no input of any node any more.
/// A value that is larger than the weights it comes from stays in the model (an expanded bias, a
/// dequantized weight), as do views, which cost nothing. Without `packs`, weights are not packed.
std::optional<ConstantPart> take_constant_part(ExportedPiece& piece, bool packs = true);

}  // namespace ortmodule
