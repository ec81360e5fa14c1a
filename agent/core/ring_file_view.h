// A ring file as a reader may touch it: by copying pieces out of it and, for commands, into it.
#ifndef TRIMTAB_AGENT_CORE_RING_FILE_VIEW_H_
#define TRIMTAB_AGENT_CORE_RING_FILE_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "agent/core/ring_format.h"
#include "agent/core/ring_reader.h"

namespace trimtab::agent {

class RingFileView {
 public:
  // Opens and checks everything that is fixed: file, magic, version, layout, checksum, identity. nullptr on error.
  static std::unique_ptr<RingFileView> Open(const std::string& path, RingError* error, std::string* message);
  ~RingFileView();
  RingFileView(const RingFileView&) = delete;
  RingFileView& operator=(const RingFileView&) = delete;

  // Copies bytes [offset, offset + bytes). False, with text in *message, when the file ends before or cannot be read.
  bool Read(uint64_t offset, void* to, size_t bytes, std::string* message) const;
  bool ReadWord(uint64_t offset, uint64_t* word, std::string* message) const;
  bool Write(uint64_t offset, const void* from, size_t bytes, std::string* message) const;

  const RingIdentity& identity() const { return identity_; }
  const std::string& path() const { return path_; }
  uint64_t data_bytes() const { return data_bytes_; }

 private:
  explicit RingFileView(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  RingError CheckFile(std::string* message) const;
  RingError LoadHeader(std::string* message);

  int fd_;
  std::string path_;
  RingIdentity identity_;
  uint64_t data_bytes_ = 0;
};

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_RING_FILE_VIEW_H_
