# SPDX-License-Identifier: Apache-2.0
# Runs COMMAND (a list) and fails unless it exits with EXIT and prints something that matches OUTPUT.
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE exit OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT exit EQUAL EXIT)
  message(FATAL_ERROR "exit code ${exit}, expected ${EXIT}:\n${out}")
endif()
if(NOT out MATCHES "${OUTPUT}")
  message(FATAL_ERROR "no '${OUTPUT}' in:\n${out}")
endif()
