# cmake -DOUT=assets.cc -DFILES="a;b" -P embed.cmake: writes the files as C++ arrays with path, type and ETag.
set(type_html "text/html; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_svg "image/svg+xml")
set(arrays "")
set(rows "")
set(n 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING ${extension} 1 -1 extension)
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "${file}: no content type for .${extension}")
  endif()
  file(READ ${file} hex HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${n}[] = {\n${hex}0};\n")
  string(APPEND rows "      Make(\"/${name}\", \"${type_${extension}}\", \"\\\"${hash}\\\"\", kFile${n}),\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "// Generated from dashboards/live.
#include \"dashboards/live/assets.h\"

#include <cstddef>

namespace trimtab::live {
namespace {

${arrays}
template <size_t size>
Asset Make(std::string_view path, std::string_view type, std::string_view etag, const unsigned char (&data)[size]) {
  return {path, type, etag, {reinterpret_cast<const char*>(data), size - 1}};
}

}  // namespace

absl::Span<const Asset> Assets() {
  static const Asset assets[] = {
${rows}  };
  return assets;
}

}  // namespace trimtab::live
")
