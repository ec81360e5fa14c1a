// The metrics that the agents' schema has, for checking a policy: a rule on another name is kept, and warned about.
#ifndef TRIMTAB_SERVER_POLICY_KNOWN_SIGNALS_H_
#define TRIMTAB_SERVER_POLICY_KNOWN_SIGNALS_H_

#include "absl/strings/string_view.h"

namespace trimtab::server {

inline constexpr absl::string_view kScalarSignals[] = {"loss",
                                                       "grad_norm",
                                                       "learning_rate",
                                                       "step_time_seconds",
                                                       "agent_overhead_seconds",
                                                       "attention_calls",
                                                       "attention_calls_passed",
                                                       "loss_scale"};

inline constexpr absl::string_view kLayerSignals[] = {"max_attention_logit",
                                                      "repeated_max_share",
                                                      "p_one_share",
                                                      "attention_entropy",
                                                      "sink_share",
                                                      "attention_rows",
                                                      "attention_trivial_rows",
                                                      "attention_empty_rows",
                                                      "repeated_max_rows",
                                                      "p_one_count",
                                                      "tie_rows",
                                                      "attention_scores",
                                                      "attention_nonfinite",
                                                      "delta_residual_sum",
                                                      "delta_residual_sum_squares",
                                                      "delta_residual_rows",
                                                      "delta_residual_z",
                                                      "attention_output_error",
                                                      "spectral_norm_q_head",
                                                      "spectral_norm_k_head",
                                                      "spectral_norm_q",
                                                      "spectral_norm_k",
                                                      "spectral_norm_v",
                                                      "spectral_norm_o",
                                                      "spectral_norm_residual_q",
                                                      "spectral_norm_residual_k",
                                                      "spectral_norm_residual_v",
                                                      "spectral_norm_residual_o",
                                                      "activation_abs_max",
                                                      "activation_rms",
                                                      "activation_mean",
                                                      "activation_nonfinite",
                                                      "attention_mode"};

// What an alert's evidence always carries, when known.
inline constexpr absl::string_view kEvidenceSignals[] = {"loss",
                                                         "grad_norm",
                                                         "learning_rate",
                                                         "loss_scale",
                                                         "step_time_seconds",
                                                         "max_attention_logit",
                                                         "repeated_max_share",
                                                         "attention_entropy",
                                                         "spectral_norm_q",
                                                         "delta_residual_z",
                                                         "attention_mode"};

}  // namespace trimtab::server
#endif  // TRIMTAB_SERVER_POLICY_KNOWN_SIGNALS_H_
