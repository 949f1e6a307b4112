# SPDX-License-Identifier: Apache-2.0
# `oktopk-lab simulate` as its users call it, on SimGrid. Labels: lab, simulate. SimGrid exits with 0 after a deadlock
# and after MPI_Abort, so no test here believes an exit code alone. Without SimGrid: reported as skipped.
if(NOT TARGET oktopk_simulated)
  oktopk_add_lab_test(simulate_says_what_is_missing ARGS simulate --ranks 16 -b 1K EXIT 2
    OUTPUT "libsimgrid-dev")
  add_test(NAME simulate_skipped COMMAND sh -c
    "echo 'SKIPPED: no SimGrid here, nothing was simulated; install libsimgrid-dev and configure again'; exit 77")
  set_tests_properties(simulate_skipped PROPERTIES LABELS "lab;simulate" SKIP_RETURN_CODE 77)
  return()
endif()

set(simulation_failed "CRITICAL;MPI_Abort was called;Deadlock;failed")
function(oktopk_add_simulate_test name output)
  add_test(NAME simulate_${name} COMMAND oktopk_lab simulate ${ARGN})
  set_tests_properties(simulate_${name} PROPERTIES LABELS "lab;simulate" TIMEOUT 300
    PASS_REGULAR_EXPRESSION "${output}" FAIL_REGULAR_EXPRESSION "${simulation_failed}")
endfunction()
# The same as an oktopk_add_lab_test: exit code and output.
function(oktopk_add_simulate_command_test name)
  oktopk_add_lab_test(simulate_${name} ${ARGN})
  set_tests_properties(lab_simulate_${name} PROPERTIES LABELS "lab;simulate" TIMEOUT 300)
endfunction()

# Flat platforms obey the model: dense within 1% of 2 ceil(log2 P) alpha + 2 n (P-1)/P beta.
string(CONCAT all_presets
  "dense +dense fp32 +data[^\n]* (1\\.00|0\\.99)[0-9] +1\\.00 [^\n]*\n"
  ".*gtopk .*oktopk .*spardl .*circulant +circulant coo32.fp32 skips [0-9,]+ +data")
oktopk_add_simulate_test(all_presets_at_16 "${all_presets}" --ranks 16 -b 100000 --preset all)
oktopk_add_simulate_test(all_presets_at_64 "${all_presets}" --ranks 64 -b 100000 --preset all)
# Where memory is short, the problem is smaller and the time is the same.
string(CONCAT smaller_problem
  "dense +dense fp32 +1/4 [^\n]* (1\\.00|0\\.99)[0-9] +1\\.00 [^\n]*\n"
  "[^\n]*oktopk [^\n]* data [^\n]*\n"
  "[^\n]*topka [^\n]* 1/[24] [^\n]* (1\\.0|0\\.99)[0-9]+ ")
oktopk_add_simulate_test(smaller_problem "${smaller_problem}"
  --ranks 64 -b 100000 --preset dense,oktopk,topka --memory 0.05)
oktopk_add_simulate_test(published_thresholds "oktopk +oktopk coo32.fp32 +data"
  --ranks 12 -b 20000 --preset oktopk --thresholds published --support correlated)
oktopk_add_simulate_command_test(refuses_thresholds ARGS simulate --ranks 4 -b 1000 --thresholds guessed EXIT 2
  OUTPUT "unknown [a-z ]*'guessed'")
oktopk_add_simulate_command_test(refuses_steps_beyond_an_evaluation
  ARGS simulate --ranks 4 -b 1000 --preset oktopk --thresholds paper --steps 30 EXIT 2
  OUTPUT "--steps 30: it must be 1 to 29")
foreach(platform IN ITEMS flat-100g dragonfly fat-tree gpu-nodes wan)
  oktopk_add_simulate_test(${platform}
    "20 dense .* 20 circulant +circulant elias_fano.bf16 skips [0-9,]+ +data .* 20 auto +[a-z]+ "
    --platform ${platform} --ranks 20 -b 20000 --preset dense,circulant,auto --support layered --codec elias_fano+bf16)
endforeach()
oktopk_add_simulate_test(nodes "24 circulant +circulant coo32.fp32 skips [0-9,]+ group 8 +data"
  --platform gpu-nodes --ranks 24 -b 20000 --preset circulant --codec coo32 --group 8)
oktopk_add_simulate_test(slow_rank "slow host 3:10, slow link 2:5.*spardl .* [2-9]\\.[0-9]+ +[0-9.]+ +[0-9.]+\n"
  --ranks 16 -b 100000 --preset dense,spardl --slow-host 3:10 --slow-link 2:5 --support correlated)

oktopk_add_simulate_command_test(sees_a_deadlock
  ARGS simulate --ranks 4 -b 1000 --preset spardl --provoke deadlock EXIT 1 OUTPUT "Deadlock.*no result")
oktopk_add_simulate_command_test(sees_an_abort
  ARGS simulate --ranks 4 -b 1000 --preset spardl --provoke abort EXIT 1 OUTPUT "MPI_Abort was called.*no result")
oktopk_add_simulate_command_test(sees_an_error
  ARGS simulate --ranks 4 -b 1000 --preset spardl --provoke error EXIT 1 OUTPUT "CRITICAL: provoked")
string(CONCAT end_and_list
  "mkdir -p simulate_tmp && TMPDIR=simulate_tmp timeout 5 "
  "'$<TARGET_FILE:oktopk_lab>' simulate --ranks 512 -b 1M --preset oktopk; "
  "test -z \"$(ls simulate_tmp)\" && echo nothing is left")
add_test(NAME simulate_cleans_up_when_it_is_ended COMMAND sh -c "${end_and_list}")
set_tests_properties(simulate_cleans_up_when_it_is_ended PROPERTIES LABELS "lab;simulate" TIMEOUT 60
  PASS_REGULAR_EXPRESSION "ended by signal 15.*nothing is left")
oktopk_add_simulate_command_test(refuses_platform ARGS simulate --platform moon EXIT 2
  OUTPUT "unknown platform 'moon'. there are: flat-100g")
oktopk_add_simulate_command_test(refuses_slow_link ARGS simulate --ranks 16 --platform fat-tree --slow-link 1:2 EXIT 2
  OUTPUT "links of single ranks")
oktopk_add_simulate_command_test(refuses_slow_rank ARGS simulate --ranks 16 --slow-host 16:2 EXIT 2
  OUTPUT "--slow-host 16:2: there is no rank 16 of 16")
oktopk_add_simulate_command_test(refuses_too_much ARGS simulate --ranks 64 -b 1M --preset circulant
  --memory 0.0001 EXIT 2 OUTPUT "preset circulant on 64 ranks .* needs about")

string(CONCAT simulate_twice
  "'$<TARGET_FILE:oktopk_lab>' simulate --ranks 12 -b 50K --preset all >simulate_1.txt && "
  "'$<TARGET_FILE:oktopk_lab>' simulate --ranks 12 -b 50K --preset all >simulate_2.txt && "
  "cmp simulate_1.txt simulate_2.txt && grep -q circulant simulate_1.txt && echo the same bytes")
add_test(NAME simulate_twice_the_same COMMAND sh -c "${simulate_twice}")
set_tests_properties(simulate_twice_the_same PROPERTIES LABELS "lab;simulate" TIMEOUT 300
  PASS_REGULAR_EXPRESSION "the same bytes" FAIL_REGULAR_EXPRESSION "${simulation_failed}")

# The scaling report from real simulations, the smallest there is, by the first Python that has matplotlib.
find_package(Python3 QUIET COMPONENTS Interpreter)
set(scaling_report ${PROJECT_SOURCE_DIR}/lab/scaling/report.py)
if(Python3_FOUND AND EXISTS ${scaling_report})
  string(CONCAT report_or_skip
    "for p in '${PROJECT_SOURCE_DIR}/.venv/bin/python' '${Python3_EXECUTABLE}' /usr/bin/python3; do "
    "if \"$p\" -c 'import matplotlib' 2>/dev/null; then "
    "exec \"$p\" '${scaling_report}' --quick --lab '$<TARGET_FILE:oktopk_lab>' "
    "--oktopk '$<TARGET_FILE:oktopk_tool>' --out scaling_report; fi; done; "
    "echo 'SKIPPED: no matplotlib here; install python3-matplotlib'; exit 77")
  add_test(NAME simulate_report COMMAND sh -c "${report_or_skip}")
  set_tests_properties(simulate_report PROPERTIES LABELS "lab;simulate" TIMEOUT 300 SKIP_RETURN_CODE 77
    FAIL_REGULAR_EXPRESSION "NOT SIMULATED;Traceback")
endif()
