// The last N values of a series, with order statistics. Memory is taken at construction; a median costs one
// nth_element over N floats (about 0.5 us for 64).
#ifndef TRIMTAB_SERVER_POLICY_DETECTORS_WINDOW_H_
#define TRIMTAB_SERVER_POLICY_DETECTORS_WINDOW_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "server/policy/detectors/reading.h"

namespace trimtab::server {

// Median of `values`, which are reordered. NaN when empty.
inline double MedianInPlace(std::vector<double>& values) {
  if (values.empty()) return kNotKnown;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  const double lower = *std::max_element(values.begin(), values.begin() + middle);
  return lower + (upper - lower) / 2;
}

class Window {
 public:
  // capacity >= 1.
  explicit Window(size_t capacity) : capacity_(std::max<size_t>(1, capacity)) {
    ring_.reserve(capacity_);
    scratch_.reserve(capacity_);
  }

  void Push(double value) {
    if (ring_.size() < capacity_) {
      ring_.push_back(value);
    } else {
      ring_[next_] = value;
    }
    next_ = (next_ + 1) % capacity_;
  }
  void Clear() {
    ring_.clear();
    next_ = 0;
  }

  size_t size() const { return ring_.size(); }
  size_t capacity() const { return capacity_; }
  bool full() const { return ring_.size() == capacity_; }

  double Median() const {
    scratch_.assign(ring_.begin(), ring_.end());
    return MedianInPlace(scratch_);
  }
  // Median of |x - center|.
  double MedianDeviation(double center) const {
    scratch_.clear();
    for (double x : ring_) scratch_.push_back(std::abs(x - center));
    return MedianInPlace(scratch_);
  }
  double Minimum() const { return ring_.empty() ? kNotKnown : *std::min_element(ring_.begin(), ring_.end()); }
  double Mean() const {
    double sum = 0;
    for (double x : ring_) sum += x;
    return ring_.empty() ? kNotKnown : sum / static_cast<double>(ring_.size());
  }

 private:
  size_t capacity_;
  size_t next_ = 0;
  std::vector<double> ring_;
  mutable std::vector<double> scratch_;
};

// A window that outliers do not teach: a value that fires is kept out, so that a fault cannot become its own baseline,
// until `patience` of them came in a row; then the new level is taken as the series' own.
class Baseline {
 public:
  Baseline(size_t capacity, size_t patience) : window_(capacity), patience_(patience) {}
  void Learn(double value, bool outlying) {
    if (!std::isfinite(value)) return;
    if (!outlying) {
      outlying_in_row_ = 0;
    } else if (outlying_in_row_ < patience_) {
      ++outlying_in_row_;
      return;
    }
    window_.Push(value);
  }
  const Window& window() const { return window_; }

 private:
  Window window_;
  size_t patience_;
  size_t outlying_in_row_ = 0;
};

// Sigma of a normal distribution with this median deviation.
inline double SigmaOfMad(double mad) { return 1.4826 * mad; }

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_DETECTORS_WINDOW_H_
