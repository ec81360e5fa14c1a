// What text may enter a ring file.
#ifndef TRIMTAB_AGENT_CORE_TEXT_CHECK_H_
#define TRIMTAB_AGENT_CORE_TEXT_CHECK_H_

#include <cstddef>

namespace trimtab::agent {

// Well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF) without NUL.
bool IsUtf8(const char* text, size_t bytes);

// IsUtf8 and nothing that would break a line or hide: no C0 or C1 control, DEL, U+2028, U+2029.
bool IsPrintableUtf8(const char* text, size_t bytes);

// Longest prefix of at most `limit` bytes that does not cut a character, so that UTF-8 stays UTF-8.
size_t Utf8Prefix(const char* text, size_t bytes, size_t limit);

}  // namespace trimtab::agent
#endif  // TRIMTAB_AGENT_CORE_TEXT_CHECK_H_
