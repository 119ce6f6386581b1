// What a run in segments takes at most, as far as that can be told before it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inference/segment.h"

namespace ortmodule {

/// The bytes of a run, outputs included, in which every size that data decides is the largest it
/// can be; nullopt if there is no such bound: contents or control flow depend on data, too. Feeds
/// need data only where sizes depend on their content. Throws Error if a part cannot be planned.
std::optional<int64_t> most_segmented_bytes(const SegmentHost& host, Segment& segment,
                                            std::vector<HostFeed> feeds);

}  // namespace ortmodule
