// SPDX-License-Identifier: Apache-2.0
// A training job with an ElasticReducer in the simulation: members crash, pause, lose connections, leave and join, and
// those that are left go on. run_elastic_job() checks all along:
//   agreement   a committed step has the same update, bit by bit, on every member that commits it
//   membership  all members of an epoch have got the same answer
//   reports     all members of an epoch report the same change, losses included
//   mass        gradients of all members of committed steps equal updates, what the members have unsent, and what the
//               reports say is lost: exact where sums are
//   progress    a member that was not given up ends with all steps
#pragma once

#include "tests/faults/job.h"
#include "tests/faults/plan.h"

namespace oktopk::faults {

JobResult run_elastic_job(const Plan& plan);

}  // namespace oktopk::faults
