trimtab_test(server_kill_test
  SOURCES server_kill_test.cc
  LIBS trimtab_server_test_support
  LABELS fault
  TIMEOUT 600)
target_compile_definitions(server_kill_test PRIVATE TRIMTABD="$<TARGET_FILE:trimtabd>")
add_dependencies(server_kill_test trimtabd)
trimtab_test(server_disk_full_test
  SOURCES server_disk_full_test.cc
  LIBS trimtab_server_test_support
  LABELS fault
  TIMEOUT 300)
target_compile_definitions(server_disk_full_test PRIVATE TRIMTABD="$<TARGET_FILE:trimtabd>")
add_dependencies(server_disk_full_test trimtabd)
