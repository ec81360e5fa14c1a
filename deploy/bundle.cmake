# cmake -DSOURCE=<repository> -DBINARY=<folder> -DVERSION=<x.y.z> -P deploy/bundle.cmake
#
# Builds the executables in BINARY with third-party libraries linked statically, installs them into
# BINARY/trimtab-VERSION-<system>-<processor>, copies the shared libraries that exist only as such into lib/trimtab
# beside them, checks that nothing else but the C library is needed, and packs the folder.
cmake_minimum_required(VERSION 3.25)
foreach(needed SOURCE BINARY VERSION)
  if(NOT ${needed})
    message(FATAL_ERROR "bundle.cmake: -D${needed}= is missing")
  endif()
endforeach()

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

cmake_host_system_information(RESULT processor QUERY OS_PLATFORM)
set(name trimtab-${VERSION}-linux-${processor})
set(prefix ${BINARY}/${name})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY}/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIMTAB_TESTS=OFF
    -DTRIMTAB_BUNDLE_STATIC=ON)
run(${CMAKE_COMMAND} --build ${BINARY}/build)
file(REMOVE_RECURSE ${prefix})
run(${CMAKE_COMMAND} --install ${BINARY}/build --prefix ${prefix} --strip)

# The C library comes from the machine; everything else comes along.
set(system "^(libc|libm|libdl|librt|libpthread|ld-linux.*|libresolv|linux-vdso)\\.so")
file(GET_RUNTIME_DEPENDENCIES
     EXECUTABLES ${prefix}/bin/trimtabd ${prefix}/bin/trimtab ${prefix}/bin/trimtab-courier
     PRE_EXCLUDE_REGEXES ${system} POST_EXCLUDE_REGEXES ${system}
     RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing)
if(missing)
  message(FATAL_ERROR "bundle: libraries not found: ${missing}")
endif()
foreach(library ${libraries})
  file(INSTALL ${library} DESTINATION ${prefix}/lib/trimtab FOLLOW_SYMLINK_CHAIN)
  get_filename_component(file ${library} NAME)
  message(STATUS "carried: ${file}")
endforeach()
foreach(program trimtabd trimtab trimtab-courier)
  execute_process(COMMAND ldd ${prefix}/bin/${program} OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" needed "${needed}")
  foreach(line ${needed})
    string(STRIP "${line}" line)
    if(NOT line MATCHES "${system}" AND NOT line MATCHES "^/lib.*/ld-linux" AND NOT line MATCHES "=> ${prefix}/")
      message(FATAL_ERROR "bundle: ${program} takes a library from this machine: ${line}")
    endif()
  endforeach()
endforeach()
run(${CMAKE_COMMAND} -E chdir ${BINARY} ${CMAKE_COMMAND} -E tar czf ${name}.tar.gz ${name})
message(STATUS "bundle: ${BINARY}/${name}.tar.gz")
