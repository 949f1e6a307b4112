# SPDX-License-Identifier: Apache-2.0
# The command as its users call it: results, error messages and exit codes. Label: command, or mpi.
function(oktopk_add_command_test name)
  cmake_parse_arguments(arg "" "EXIT;OUTPUT" "ARGS" ${ARGN})
  add_test(NAME command_${name} COMMAND ${CMAKE_COMMAND}
    "-DCOMMAND=$<TARGET_FILE:oktopk_tool>;${arg_ARGS}" -DEXIT=${arg_EXIT} "-DOUTPUT=${arg_OUTPUT}"
    -P ${CMAKE_CURRENT_SOURCE_DIR}/run_command.cmake)
  set_tests_properties(command_${name} PROPERTIES LABELS command TIMEOUT 120)
endfunction()

# The subcommands in their groups, and the names that they had before.
oktopk_add_command_test(groups_its_subcommands ARGS --help EXIT 0
  OUTPUT "Try:.* train .*Decide:.* tune .* explain .*Measure:.* bench .*Check:.* verify .* doctor .*Launch:.* run ")
foreach(moved IN ITEMS study simulate kernels report)
  oktopk_add_command_test(${moved}_has_moved ARGS ${moved} --help EXIT 2
    OUTPUT "oktopk: '${moved}' has moved: run 'oktopk-lab ${moved}'")
endforeach()
oktopk_add_command_test(predict_is_now_explain_all ARGS predict --ranks 16,256 EXIT 0
  OUTPUT "'predict' is now 'explain --all'.*spardl +256 +16 ")
oktopk_add_command_test(ping_is_now_links ARGS ping --bytes 8 --budget 0.01 EXIT 0
  OUTPUT "'ping' is now 'tune --links'.*one way +both ways")
oktopk_add_command_test(refuses_an_unknown_subcommand ARGS trian EXIT 2 OUTPUT "unknown subcommand 'trian'")
oktopk_add_command_test(explain_all_makes_no_choice ARGS explain --all --coarsest fp32 EXIT 2
  OUTPUT "oktopk: --coarsest: not with --all")
oktopk_add_command_test(links_have_no_profile ARGS tune --links -o p.json EXIT 2
  OUTPUT "oktopk: --output: not with --links")
oktopk_add_command_test(iterations_are_no_n_any_more ARGS bench --preset topka --ranks 2 -b 2000 -n 1 -w 0 EXIT 0
  OUTPUT "'bench -n' is now 'bench --iters'.* 1 iterations")
oktopk_add_command_test(training_starts_without_warmup
  ARGS train --warmup dense:0.5 --ranks 2 --steps 4 --model mlp:16 --preset circulant EXIT 0
  OUTPUT "'train --warmup' is now 'train --start'.*warm-up dense:0.5")
oktopk_add_command_test(recipes_are_compared_in_the_lab ARGS train --look-ahead --steps 4 EXIT 2
  OUTPUT "train --look-ahead: recipes are compared by oktopk-lab study learning")
oktopk_add_command_test(profile_is_read_and_never_written ARGS tune --profile p.json EXIT 2
  OUTPUT "tune --profile: a profile is read by this name, and written by -o FILE")
oktopk_add_command_test(bench_answers_what_is_gone ARGS bench --fresh EXIT 2
  OUTPUT "bench --fresh: steps are timed with error feedback")
oktopk_add_command_test(explain_answers_what_is_gone ARGS explain -e 2M EXIT 2
  OUTPUT "explain -e,--end: explain takes one size, -b")

oktopk_add_command_test(list ARGS list EXIT 0 OUTPUT "circulant +ours")
oktopk_add_command_test(bench_checks_all_presets
  ARGS bench --ranks 3 -b 4K -e 16K -f 4 --iters 3 -c EXIT 0 OUTPUT "wrong values: 0 OK")
oktopk_add_command_test(bench_takes_codecs_and_skips
  ARGS bench --preset circulant --ranks 5 -b 8K --iters 3 -c --skips 5,2,1 --codec elias_fano+fp32 --data layered
  EXIT 0 OUTPUT "wrong values: 0 OK")
oktopk_add_command_test(bench_drops_a_selector_with_all_that_belongs_to_it
  ARGS bench --preset all --ranks 2 -b 2000 --iters 1 -w 0 --selector reused --tau-prime 2 --thresholds paper
  EXIT 0 OUTPUT "dense.*circulant")
oktopk_add_command_test(explain_all_does_not_offer_auto ARGS explain --help EXIT 0
  OUTPUT "several with commas, or all \\(oktopk list\\)")
oktopk_add_command_test(explain_all_prices_the_same_network ARGS explain --all --ranks 4 EXIT 0
  OUTPUT "alpha = 16[^,]*, beta = 3.2e-10 s/B")
if(EXISTS /dev/full)
  add_test(NAME command_output_that_is_lost_is_an_error COMMAND sh -c
    "for words in list 'explain --all --ranks 4' 'bench --preset topka --ranks 2 -b 1000 --iters 1 -w 0' --help; do \
       $<TARGET_FILE:oktopk_tool> $words > /dev/full; test $? = 3 || exit 1; done; echo all refused")
  set_tests_properties(command_output_that_is_lost_is_an_error PROPERTIES LABELS command TIMEOUT 60
    PASS_REGULAR_EXPRESSION "cannot write to standard output.*all refused")
endif()
# The first words of the compiler's answer to an older standard.
add_test(NAME command_older_standard_is_refused_in_words COMMAND ${CMAKE_CXX_COMPILER} -std=c++17 -fsyntax-only
  -I ${PROJECT_SOURCE_DIR} -x c++ ${PROJECT_SOURCE_DIR}/oktopk/oktopk.h)
set_tests_properties(command_older_standard_is_refused_in_words PROPERTIES LABELS command
  PASS_REGULAR_EXPRESSION "oktopk needs C\\+\\+20")
oktopk_add_command_test(bench_shows_references
  ARGS bench --preset circulant,dense --ranks 3 -b 8K --iters 3 --breakdown --simd scalar --threads 2
  EXIT 0 OUTPUT "axpy-limit .*circulant: check [0-9.]+ ms, select [0-9.]+ ms, .*wire [0-9.]+ ms, axpy [0-9.]+ ms")
oktopk_add_command_test(bench_sums_nodes_first
  ARGS bench --ranks 5 --group 2 -b 16K --iters 3 -c --breakdown EXIT 0
  OUTPUT "circulant/2 .*circulant/2: check .*inside [0-9.]+ ms.*wrong values: 0 OK")
oktopk_add_command_test(bench_refuses_groups_of_nothing ARGS bench --group 0 EXIT 2 OUTPUT "--group 0: it must be host")
oktopk_add_command_test(bench_refuses_skips_of_all_ranks_for_leaders
  ARGS bench --preset circulant --ranks 4 --group 2 --skips 4,2,1 EXIT 2 OUTPUT "4,2,1")
oktopk_add_command_test(bench_refuses_simd_level ARGS bench --simd sse9 EXIT 2
  OUTPUT "unknown SIMD level 'sse9'. there are: scalar, avx2")
oktopk_add_command_test(bench_refuses_all_levels_at_once ARGS bench --simd all EXIT 2 OUTPUT "one level at a time")
oktopk_add_command_test(bench_refuses_a_device_that_is_no_number ARGS bench --device cuda:x EXIT 2
  OUTPUT "^oktopk: --device: 'x' is not a count")
oktopk_add_command_test(bench_refuses_no_elements ARGS bench -b 0 EXIT 2
  OUTPUT "-b 0 -e 0: sizes must satisfy 1 <= b <= e")
oktopk_add_command_test(bench_refuses_no_threads ARGS bench --threads 0 EXIT 2 OUTPUT "--threads 0: it must be in 1")
oktopk_add_command_test(explain_all ARGS explain --all --ranks 16,256 EXIT 0 OUTPUT "spardl +256 +16 ")
oktopk_add_command_test(tune ARGS tune --ranks 3 --budget 0.02 --for-ranks 3,64 -e 1M -o tuned.json -J tune.json EXIT 0
  OUTPUT "latency [0-9.e+-]+ us per round.*[0-9.]+ GB/s.*ns per sparse entry.* 64 +1048576 +0.05 +[a-z]+")
oktopk_add_command_test(tune_measures_hosts_apart
  ARGS tune --ranks 4 --ranks-per-host 2 --budget 0.02 -e 64K EXIT 0 OUTPUT "in a host latency .*a host +2 ranks")
oktopk_add_command_test(tune_alone ARGS tune --ranks 1 --budget 0.02 -e 64K EXIT 0 OUTPUT "unlimited")
oktopk_add_command_test(tune_follows_rules
  ARGS tune --ranks 2 --budget 0.02 -e 64K --override gtopk EXIT 0 OUTPUT "2 +65536 +0.05 +gtopk")
oktopk_add_command_test(tune_refuses_budget ARGS tune --budget 0 EXIT 2 OUTPUT "--budget 0: it must be in")
oktopk_add_command_test(tune_refuses_hosts ARGS tune --ranks-per-host 0 EXIT 2 OUTPUT "--ranks-per-host 0")
oktopk_add_command_test(tune_refuses_two_worlds ARGS tune --ranks 2,3 EXIT 2 OUTPUT "--for-ranks takes several")
oktopk_add_command_test(tune_refuses_to_guess_a_network ARGS tune --ranks 1 --for-ranks 8 EXIT 2
  OUTPUT "measures no network")
oktopk_add_command_test(tune_refuses_transport ARGS tune --transport pigeon EXIT 2 OUTPUT "unknown transport 'pigeon'")
oktopk_add_command_test(tune_refuses_unwritable ARGS tune -o /nonexistent/p.json EXIT 2 OUTPUT "cannot write")
oktopk_add_command_test(bench_auto ARGS bench --preset auto --ranks 3 -b 20000 --iters 2 -c EXIT 0
  OUTPUT "auto:[a-z0-9]+ .* 0 *\n")
# Dense disappoints after 16 steps of 25: a row with one name must not have the counts of dense steps.
set(three_columns " +[0-9.]+ +[0-9.]+ +[0-9.]+")
oktopk_add_command_test(bench_auto_that_changes_its_choice_names_both
  ARGS bench --preset auto --profile ${CMAKE_CURRENT_SOURCE_DIR}/tools/no_prices.json --ranks 2 -b 64K -w 5 --iters 20
  EXIT 0
  OUTPUT "auto:(dense|topka2a|[a-z0-9]+\\+|[a-z0-9]+${three_columns}${three_columns} +[0-4]?[0-9]\\.)")
oktopk_add_command_test(bench_auto_by_rule
  ARGS bench --preset auto --override gtopk:n>1K --profile ${CMAKE_CURRENT_SOURCE_DIR}/tools/profile.json
       --ranks 3 -b 20000 --iters 2 -c
  EXIT 0 OUTPUT "auto:gtopk ")
oktopk_add_command_test(train_auto ARGS train --preset auto --ranks 2 --steps 60 EXIT 0 OUTPUT "auto")
oktopk_add_command_test(explain_all_refuses_auto ARGS explain --all --preset auto EXIT 2
  OUTPUT "oktopk explain without --all says")
oktopk_add_command_test(explain_takes_a_codec_with_all_only ARGS explain --codec coo32+bf16 EXIT 2
  OUTPUT "--codec requires --all")
oktopk_add_command_test(explain ARGS explain -b 16M --density 0.01 --ranks 64 -J explain.json EXIT 0
  OUTPUT "circulant .* skips 64,.*dense bf16 .*x as fast as dense .*Dense would be the better choice above density")
oktopk_add_command_test(explain_dense ARGS explain -b 16M --density 0.6 --ranks 8 --coarsest fp32 EXIT 0
  OUTPUT "dense fp32, because nothing sparse is faster.*A sparse method would be the better choice .*below density")
oktopk_add_command_test(explain_reads_profile_and_rules
  ARGS explain -b 4M --ranks 8 --profile ${CMAKE_CURRENT_SOURCE_DIR}/tools/profile.json
       --override @${CMAKE_CURRENT_SOURCE_DIR}/tools/overrides.txt
  EXIT 0 OUTPUT "two hosts of four.*circulant elias_fano.bf16 skips 8,4,2,1 .*overridden.*because the rule")
oktopk_add_command_test(explain_knows_groups ARGS explain -b 64M --ranks 32 --group 8 --coarsest log4 EXIT 0
  OUTPUT "a host +8 ranks")
oktopk_add_command_test(explain_refuses_missing_profile ARGS explain --profile nowhere.json EXIT 2
  OUTPUT "cannot read nowhere.json")
oktopk_add_command_test(explain_refuses_profile
  ARGS explain --profile ${CMAKE_CURRENT_SOURCE_DIR}/tools/overrides.txt EXIT 2 OUTPUT "overrides.txt: not JSON")
oktopk_add_command_test(explain_refuses_rule ARGS explain --override oktopk:m<3 EXIT 2
  OUTPUT "character 8 .*expected n, k, density or P")
oktopk_add_command_test(explain_refuses_coding ARGS explain --coarsest fp8 EXIT 2
  OUTPUT "unknown value coding 'fp8'. there are: fp32, bf16, log8, log4")
oktopk_add_command_test(explain_refuses_density ARGS explain --density 0 EXIT 2 OUTPUT "--density 0: it must be")
oktopk_add_command_test(explain_refuses_group ARGS explain --ranks 4 --group 5 EXIT 2
  OUTPUT "--group 5: it must be in 1..4")
oktopk_add_command_test(verify ARGS verify --ranks 1,3 --preset oktopk,circulant -b 300 EXIT 0
  OUTPUT "all laws hold")
oktopk_add_command_test(verify_in_nodes ARGS verify --ranks 5 --group 2 --preset oktopk,circulant -b 300 EXIT 0
  OUTPUT "group 2.*all laws hold")
oktopk_add_command_test(verify_at_every_simd_level
  ARGS verify --ranks 3 --preset topka,oktopk,circulant -b 700 --without-faults --simd all --threads 2 EXIT 0
  OUTPUT "SIMD level scalar, 2 threads.*all laws hold")
oktopk_add_command_test(verify_finds_lost_mass
  ARGS verify --preset gtopk --residual sender_keeps --ranks 4 -b 2000 --data dyadic --without-faults
  EXIT 1 OUTPUT "mass: n = 2000")
oktopk_add_command_test(verify_says_what_is_not_promised
  ARGS verify --preset oktopk --thresholds paper --ranks 3 -b 300 --without-faults EXIT 0
  OUTPUT "volume: stream gaussian: [0-9.]+ words per k on average")
oktopk_add_command_test(train
  ARGS train --ranks 3 --steps 60 --batch 4 --model mlp:16 --preset all EXIT 0
  OUTPUT "circulant +weights [0-9a-f]+ after 60 steps, equal on all ranks")
oktopk_add_command_test(train_by_the_recipe
  ARGS train --recipe --ranks 2 --steps 40 --batch 4 --model mlp:16 --preset dense,oktopk,circulant EXIT 0
  OUTPUT "density 0.025, .*warm-up recipe, codec elias_fano.log4.*circulant +weights [0-9a-f]+ after 40 steps, equal")
oktopk_add_command_test(train_by_the_recipe_takes_no_density ARGS train --recipe --density 0.1 EXIT 2
  OUTPUT "--density excludes --recipe")
oktopk_add_command_test(train_in_nodes
  ARGS train --ranks 3 --group 2 --steps 60 --batch 4 --model mlp:16 --preset dense,circulant EXIT 0
  OUTPUT "circulant +weights [0-9a-f]+ after 60 steps, equal on all ranks")
oktopk_add_command_test(explain_all_in_nodes ARGS explain --all --ranks 32 --group 8 --preset circulant EXIT 0
  OUTPUT "circulant +32 ")
oktopk_add_command_test(explain_refuses_hosts ARGS explain --all --group host EXIT 2 OUTPUT "explain knows no hosts")
oktopk_add_command_test(train_refuses_optimiser ARGS train --optimiser lion EXIT 2 OUTPUT "'lion'")
oktopk_add_command_test(refuses_unknown_preset ARGS bench --preset nonsense EXIT 2
  OUTPUT "unknown preset 'nonsense'. there are: dense, topka")
oktopk_add_command_test(refuses_wrong_skips ARGS bench --preset circulant --skips 9,3,1 EXIT 2
  OUTPUT "9,3,1")
oktopk_add_command_test(refuses_density ARGS bench --density 2 EXIT 2 OUTPUT "in .0, 1")
oktopk_add_command_test(refuses_unknown_option ARGS bench --nonsense EXIT 2 OUTPUT "nonsense")
oktopk_add_command_test(explains_itself ARGS bench --help EXIT 0 OUTPUT "words/k")

# The script that checks includes has tests, too.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  add_test(NAME command_check_includes COMMAND
    ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/check_includes_test.py)
  add_test(NAME command_describes_itself COMMAND
    ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/describe_test.py $<TARGET_FILE:oktopk_tool>)
  add_test(NAME command_shows_progress COMMAND
    ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/status_line_test.py $<TARGET_FILE:oktopk_tool>)
  set_tests_properties(command_describes_itself command_shows_progress PROPERTIES LABELS command TIMEOUT 120)
  set_tests_properties(command_check_includes PROPERTIES LABELS command TIMEOUT 60)
endif()

# Traces: valid, all ranks there, spans nested.
function(oktopk_add_trace_test name ranks spans file)
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/check_trace.py
    ${ranks} ${file} ${spans} ${ARGN} --trace ${file})
  set_tests_properties(${name} PROPERTIES LABELS command TIMEOUT 120)
endfunction()
if(Python3_FOUND)
  oktopk_add_trace_test(command_bench_traces 3
    reducer/step,reducer/select,reducer/exchange,reducer/settle,message/start,message/wait,bench/circulant
    bench_trace.json
    $<TARGET_FILE:oktopk_tool> bench --preset circulant,oktopk --ranks 3 -b 8K --iters 3 -c)
  oktopk_add_trace_test(command_bench_traces_nodes 5 node/step,node/check,node/inside node_trace.json
    $<TARGET_FILE:oktopk_tool> bench --preset circulant --ranks 5 --group 2 -b 8K --iters 3)
  oktopk_add_trace_test(command_train_traces 3 train/circulant,train/compute,reducer/step
    train_trace.json
    $<TARGET_FILE:oktopk_tool> train --preset circulant --ranks 3 --steps 20)
  if(OKTOPK_HAVE_MPI)
    oktopk_add_trace_test(mpi_bench_traces 3 reducer/step,message/wait mpi_trace.json
      ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 3 ${MPIEXEC_PREFLAGS}
      $<TARGET_FILE:oktopk_tool> bench --transport mpi --preset circulant -b 8K --iters 3)
    set_tests_properties(mpi_bench_traces PROPERTIES LABELS mpi PROCESSORS 6
      ENVIRONMENT "OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
  endif()
endif()

# Dumps on SIGUSR1, and the doctor's opinion of them.
function(oktopk_add_doctor_test name)
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/check_doctor.py
    $<TARGET_FILE:oktopk_tool> ${name}_dumps 3 ${ARGN} --preset circulant -b 64K --iters 100000000)
  set_tests_properties(${name} PROPERTIES LABELS command TIMEOUT 300)
endfunction()
if(Python3_FOUND)
  oktopk_add_doctor_test(command_doctor $<TARGET_FILE:oktopk_tool> bench --ranks 3)
  if(OKTOPK_HAVE_MPI)
    oktopk_add_doctor_test(mpi_doctor ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 3 ${MPIEXEC_PREFLAGS}
      $<TARGET_FILE:oktopk_tool> bench --transport mpi)
    set_tests_properties(mpi_doctor PROPERTIES LABELS mpi PROCESSORS 6
      ENVIRONMENT "OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
  endif()
endif()
oktopk_add_command_test(doctor_refuses_a_file_that_is_not_there ARGS doctor no_such_dump.json EXIT 2
  OUTPUT "no_such_dump.json: cannot be read")
oktopk_add_command_test(doctor_refuses_a_foreign_file ARGS doctor ${CMAKE_CURRENT_SOURCE_DIR}/tools/profile.json EXIT 2
  OUTPUT "profile.json: not a dump of oktopk, or damaged: no dump of a flight recorder")
oktopk_add_command_test(bench_refuses_a_folder_it_cannot_make
  ARGS bench --flight /dev/null/dumps EXIT 2 OUTPUT "--flight /dev/null/dumps: cannot make this folder")
oktopk_add_command_test(bench_refuses_threads_in_place
  ARGS bench --in-place EXIT 2 OUTPUT "--in-place: for --transport mpi only")
oktopk_add_command_test(verify_refuses_a_place_among_threads
  ARGS verify --rank 1 EXIT 2 OUTPUT "--rank: for --transport tcp only, this is threads")
oktopk_add_command_test(links_refuse_three_ranks ARGS tune --links --ranks 3 EXIT 2 OUTPUT "--links times 2 ranks")
oktopk_add_command_test(links_of_threads ARGS tune --links --bytes 8 --budget 0.01 EXIT 0 OUTPUT "one way +both ways")
oktopk_add_command_test(bench_refuses_a_trace_it_cannot_write
  ARGS bench --trace /no_such_folder/t.json EXIT 2 OUTPUT "cannot write /no_such_folder/t.json")

if(OKTOPK_HAVE_MPI)
  oktopk_add_mpi_test(mpi_bench_4 oktopk_tool 4 bench --transport mpi -b 16K --iters 3 -c)
  oktopk_add_mpi_test(mpi_bench_in_place_3 oktopk_tool 3 bench --transport mpi --in-place
    --preset dense,circulant -b 1M --iters 3 -c)
  set_tests_properties(mpi_bench_in_place_3 PROPERTIES PASS_REGULAR_EXPRESSION "mpi in place.*wrong values: 0 OK")
  oktopk_add_mpi_test(mpi_tune_3 oktopk_tool 3 tune --transport mpi --budget 0.05 -e 64K)
  set_tests_properties(mpi_tune_3 PROPERTIES PASS_REGULAR_EXPRESSION "measured: mpi, 3 ranks.* 3 +65536 +0.05 ")
  oktopk_add_mpi_test(mpi_verify_3 oktopk_tool 3 verify --transport mpi --without-faults --ranks 2,3)
  oktopk_add_mpi_test(mpi_courage_3 oktopk_tool 3 verify --transport mpi --preset circulant -b 500)
  oktopk_add_mpi_test(mpi_verify_5 oktopk_tool 5 verify --transport mpi --without-faults
    --codec elias_fano+bf16 -b 1000)
  set_tests_properties(mpi_bench_4 PROPERTIES PASS_REGULAR_EXPRESSION "MPI_Allreduce.*wrong values: 0 OK")
  oktopk_add_mpi_test(mpi_verify_nodes_5 oktopk_tool 5 verify --transport mpi --without-faults --group 2
    --preset topka,gtopk,oktopk,circulant)
  oktopk_add_mpi_test(mpi_bench_host_3 oktopk_tool 3 bench --transport mpi --group host
    --preset circulant -b 16K --iters 3 -c)
  set_tests_properties(mpi_bench_host_3 PROPERTIES PASS_REGULAR_EXPRESSION "circulant/host.*wrong values: 0 OK")
  set_tests_properties(mpi_courage_3 PROPERTIES PROCESSORS 1)
  set_tests_properties(mpi_verify_3 mpi_courage_3 mpi_verify_5 mpi_verify_nodes_5 PROPERTIES
    PASS_REGULAR_EXPRESSION "all laws hold")
endif()

# Ranks over TCP, started by the command itself.
if(OKTOPK_HAVE_TCP)
  oktopk_add_command_test(run_benches_over_tcp
    ARGS run -n 3 --encrypt -- $<TARGET_FILE:oktopk_tool> bench --transport tcp --preset circulant -b 8K --iters 3 -c
    EXIT 0 OUTPUT "wrong values: 0 OK")
  oktopk_add_command_test(run_trains_over_tcp
    ARGS run -n 3 -- $<TARGET_FILE:oktopk_tool> train --transport tcp --steps 3 EXIT 0 OUTPUT "3 ranks .tcp.")
  oktopk_add_command_test(run_trains_members_that_come_and_go
    ARGS run --keep-going -n 3 -- $<TARGET_FILE:oktopk_tool> train --elastic --steps 20 --model mlp:16 EXIT 0
    OUTPUT "circulant: loss [0-9.]+, accuracy [0-9.]+% after 20 steps. epoch 1, members 1,2,3, lost none. weights ")
  oktopk_add_command_test(train_elastic_refuses_other_transports ARGS train --elastic --transport mpi EXIT 2
    OUTPUT "--elastic --transport mpi: only transport tcp can lose a rank")
  oktopk_add_command_test(train_elastic_refuses_two_presets ARGS train --elastic --preset dense,topka EXIT 2
    OUTPUT "--elastic --preset dense,topka: it must be one preset")
  oktopk_add_command_test(train_elastic_refuses_pages ARGS train --elastic --html page.html EXIT 2
    OUTPUT "--html page.html: not with --elastic")
  oktopk_add_command_test(run_restarts_need_to_keep_going ARGS run -n 2 --restart 1 -- true EXIT 2
    OUTPUT "--restart 1: it needs --keep-going")
  oktopk_add_command_test(run_restarts_so_many_times
    ARGS run -n 2 --keep-going --restart 2 -- sh -c "sleep 1 && exit 9" EXIT 9
    OUTPUT "status 9 and is started anew.*status 9 and is started anew.*exited with status 9")
  oktopk_add_command_test(run_names_the_rank_that_failed
    ARGS run -n 3 --prefix -- sh -c "test $OKTOPK_RANK != 1 || exit 7" EXIT 7 OUTPUT "rank 1 exited with status 7")
  oktopk_add_command_test(run_refuses_no_ranks ARGS run -n 0 -- true EXIT 2 OUTPUT "-n 0: it must be at least 1")
  oktopk_add_command_test(run_refuses_half_a_job ARGS run -n 2 --size 4 -- true EXIT 2 OUTPUT "need --rendezvous")
  oktopk_add_command_test(tcp_refuses_to_run_without_a_launcher
    ARGS bench --transport tcp EXIT 2 OUTPUT "OKTOPK_RANK is not set; start the ranks with")
  # Odd P, and a part of the ranks (split) before all of them.
  oktopk_add_command_test(run_verifies_over_tcp
    ARGS run -n 5 --bind -- $<TARGET_FILE:oktopk_tool> verify --transport tcp --without-faults --ranks 3,5
      --preset circulant,oktopk -b 500
    EXIT 0 OUTPUT "all laws hold")
  oktopk_add_command_test(run_times_links_over_tcp
    ARGS run -n 2 -- $<TARGET_FILE:oktopk_tool> tune --links --transport tcp --bytes 0,8,1M --budget 0.01
    EXIT 0 OUTPUT " 1048576 ")
  # By hand: a rendezvous that a signal ends, and ranks with flags, which win over variables.
  add_test(NAME command_tcp_by_hand COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/by_hand.sh $<TARGET_FILE:oktopk_tool>)
  set_tests_properties(command_tcp_by_hand PROPERTIES LABELS command TIMEOUT 120
    PASS_REGULAR_EXPRESSION "wrong values: 0 OK.*ends, signal 15.*refused .*by hand: all fine")
  # The launcher with real grandchildren, signals and a terminal.
  if(Python3_FOUND)
    add_test(NAME command_run_ends_all
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/check_run.py $<TARGET_FILE:oktopk_tool>)
    set_tests_properties(command_run_ends_all PROPERTIES LABELS command TIMEOUT 300
      PASS_REGULAR_EXPRESSION "run: all fine")
  endif()
  set(test_secret ${CMAKE_CURRENT_BINARY_DIR}/test_secret)
  set(short_secret ${CMAKE_CURRENT_BINARY_DIR}/short_secret)
  file(WRITE ${test_secret} "a secret for tests only\n")
  file(WRITE ${short_secret} "short\n")
  file(CHMOD ${test_secret} ${short_secret} PERMISSIONS OWNER_READ OWNER_WRITE)
  oktopk_add_command_test(tcp_refuses_a_rank_that_is_no_number
    ARGS bench --transport tcp --rank one --world-size 3 EXIT 2 OUTPUT "--rank = .one., must be a number")
  oktopk_add_command_test(tcp_refuses_a_rank_beyond_the_world
    ARGS tune --links --transport tcp --rank 3 --world-size 3 --rendezvous localhost:1 --secret-file ${test_secret}
    EXIT 2 OUTPUT "rank 3 in a world of size 3, must be from 0 to size - 1")
  oktopk_add_command_test(tcp_refuses_a_secret_file_that_is_absent
    ARGS tune --transport tcp --rank 0 --world-size 1 --rendezvous localhost:1 --secret-file /no_such_file
    EXIT 2 OUTPUT "secret file /no_such_file: it cannot be read: No such file")
  oktopk_add_command_test(serve_only_starts_no_ranks
    ARGS run --serve-only --rendezvous 127.0.0.1:0 --secret-file ${test_secret} -n 2 -- true EXIT 2
    OUTPUT "--serve-only: it starts no ranks; leave out -n and the program")
  oktopk_add_command_test(rendezvous_is_now_serve_only
    ARGS rendezvous --listen localhost:1 --secret-file ${short_secret} EXIT 2
    OUTPUT "'rendezvous' is now 'run --serve-only'.*'run --listen' is now 'run --rendezvous'.* line has 5 bytes")
  oktopk_add_command_test(run_shows_its_own_examples ARGS run --help EXIT 0 OUTPUT "Examples:\n  oktopk run -n 4 -- ")
  oktopk_add_command_test(run_needs_a_program ARGS run -n 2 EXIT 2 OUTPUT "run: no program to start")
  oktopk_add_command_test(serve_only_refuses_a_short_secret
    ARGS run --serve-only --rendezvous 127.0.0.1:0 --secret-file ${short_secret} EXIT 2
    OUTPUT "secret file .*: its first line has 5 bytes, must have at least 16")
  oktopk_add_command_test(serve_only_refuses_no_grace
    ARGS run --serve-only --rendezvous 127.0.0.1:0 --secret-file ${test_secret} --grace 0
    EXIT 2 OUTPUT "--grace 0: it must be above 0")
  oktopk_add_command_test(serve_only_refuses_an_address_without_a_port
    ARGS run --serve-only --rendezvous localhost --secret-file ${test_secret} EXIT 2 OUTPUT "must be host:port")
endif()
