# What ThreadSanitizer must know about Debian's libraries, which are built without it. Every executable shows it the
# mutexes of Abseil (absl_mutex.cc) and carries the suppressions (suppressions.cc), so that a process that a test starts
# needs no TSAN_OPTIONS.
add_library(trimtab_tsan OBJECT ${CMAKE_CURRENT_LIST_DIR}/absl_mutex.cc ${CMAKE_CURRENT_LIST_DIR}/suppressions.cc)
target_compile_options(trimtab_tsan PRIVATE -fno-exceptions)
target_link_libraries(trimtab_tsan PUBLIC ${CMAKE_DL_LIBS})
target_link_libraries(trimtab_options INTERFACE
                      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:trimtab_tsan>
                      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:$<TARGET_OBJECTS:trimtab_tsan>>)
