#include "inference/recent_calls.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ortmodule {
namespace {

constexpr size_t kMostCalls = 8;

constexpr int64_t kAnySize = -1;

// Strides of a tensor whose sizes are not read are not read, either.
bool is_alike(const HostTensorView& known, const HostTensorView& given) {
  if (known.dtype != given.dtype || known.texts != given.texts ||
      known.sizes.size() != given.sizes.size())
    return false;
  bool is_unread = false;
  for (size_t d = 0; d < given.sizes.size(); ++d) {
    const bool is_any = known.sizes[d] == kAnySize;
    if (!is_any && known.sizes[d] != given.sizes[d]) return false;
    is_unread = is_unread || is_any;
  }
  return is_unread || known.strides == given.strides;
}

bool has_content(const HostTensorView& tensor, const FeedContent& content) {
  const int64_t held = element_count(tensor.sizes) * static_cast<int64_t>(size_of(tensor.dtype));
  return tensor.data && content.offset_bytes + static_cast<int64_t>(content.bytes.size()) <= held &&
         std::memcmp(static_cast<const char*>(tensor.data) + content.offset_bytes,
                     content.bytes.data(), content.bytes.size()) == 0;
}

}  // namespace

// Allocates nothing: this is done in every run.
bool RecentCall::fits(const std::vector<ValueForm>& given_forms,
                      const std::vector<HostTensorView>& given) const {
  return forms == given_forms &&
         std::equal(tensors.begin(), tensors.end(), given.begin(), given.end(), is_alike) &&
         std::all_of(contents.begin(), contents.end(), [&](const FeedContent& content) {
           return has_content(given[content.tensor], content);
         });
}

RecentCalls::Found RecentCalls::find(const std::vector<ValueForm>& forms,
                                     const std::vector<HostTensorView>& tensors) {
  const std::lock_guard lock(mutex_);
  const auto call = std::find_if(calls_.begin(), calls_.end(), [&](const RecentCall& known) {
    return known.fits(forms, tensors);
  });
  if (call == calls_.end()) return {};
  if (std::shared_ptr<PlanEntry> entry = call->entry.lock(); entry && !entry->outdated) {
    calls_.splice(calls_.begin(), calls_, call);
    return {call->outcome, std::move(entry)};
  }
  calls_.erase(call);
  return {};
}

void RecentCalls::clear() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
}

void RecentCalls::add(RecentCall call, const UnreadSizes& unread) {
  for (HostTensorView& tensor : call.tensors) tensor.data = nullptr;
  for (size_t i = 0; i < unread.size(); ++i)
    for (size_t d = 0; d < unread[i].size(); ++d)
      if (unread[i][d]) call.tensors[i].sizes[d] = kAnySize;
  const std::lock_guard lock(mutex_);
  calls_.push_front(std::move(call));
  if (calls_.size() > kMostCalls) calls_.pop_back();
}

}  // namespace ortmodule
