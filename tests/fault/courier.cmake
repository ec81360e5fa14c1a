trimtab_test(courier_kill_test
  SOURCES courier_kill_test.cc
  LIBS trimtab_courier_testing
  LABELS fault
  TIMEOUT 600)
target_compile_definitions(courier_kill_test PRIVATE
  TRIMTAB_COURIER="$<TARGET_FILE:trimtab-courier>" COURIER_TEST_TRAINER="$<TARGET_FILE:courier_test_trainer>")
add_dependencies(courier_kill_test trimtab-courier courier_test_trainer)
