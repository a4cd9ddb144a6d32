//! Tests of both programs with a double of the API server.
//!
//! They run the life of a claim while the API server fails once, in every way, at every request. In every case the
//! claim has one storage, nothing shrinks, and nothing is left behind. Other tests are about nodes that go away.
//!
//! All tests are listed in one file, however long it gets. Each test is in a module.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "a run says how many faults there were")]

mod alone;
mod away;
mod candidates;
mod checked;
mod claim_authors;
mod counted;
mod deleted;
mod driverless;
mod evictions;
mod fixed;
mod flood;
mod found;
mod hostnames;
mod infeasible;
mod judged;
mod large;
mod large_claims;
mod leading;
mod liar;
mod life;
mod limited;
mod lost;
mod lowered;
mod misplaced;
mod patience;
mod programs;
mod recovered;
mod refused;
mod replaced;
mod retained;
mod room;
mod rounds;
mod tenants;
mod unable;
mod unmeasured;
mod unreadable;
mod unstorable;
mod untold;
mod wakeups;
mod webhooks;
mod world;

use flexvol_apiserver::Kubernetes;

#[test]
fn a_claim_is_made_grown_and_deleted_whatever_request_fails_in_whatever_way() {
    rounds::failed();
}

#[test]
fn a_check_sees_a_claim_grow_and_go() {
    checked::grown_and_gone();
}

#[test]
fn a_check_that_fails_says_what_happened_and_leaves_nothing() {
    checked::without_room();
    checked::without_agents();
}

#[test]
fn a_check_says_that_no_growth_was_seen_where_nothing_tells_a_size() {
    checked::without_sizes();
}

#[test]
fn a_check_of_a_class_whose_claim_would_not_be_bound_or_leave_its_volume_is_refused() {
    checked::of_another_class();
}

#[test]
fn a_check_that_is_interrupted_fails_and_deletes_its_claim() {
    checked::ended();
}

#[test]
fn a_check_whose_output_nobody_reads_leaves_nothing() {
    checked::without_reader();
}

#[test]
fn a_check_that_is_not_told_that_its_claim_was_made_deletes_it() {
    checked::unanswered();
}

#[test]
fn a_claim_that_has_no_volume_goes_while_the_node_that_was_to_make_it_is_silent() {
    away::outlived_by_no_claim();
}

#[test]
fn a_node_that_is_silent_gets_no_new_volume_until_it_is_back() {
    away::not_chosen();
}

#[test]
fn who_waits_for_a_node_that_is_away_is_told_and_it_goes_on_when_that_is_back() {
    away::waited_for();
}

#[test]
fn a_volume_of_a_node_that_never_comes_back_goes_when_a_person_says_so() {
    away::given_up();
}

#[test]
fn a_node_that_has_gone_is_forgotten_unless_a_volume_is_on_it() {
    away::forgotten();
}

#[test]
fn an_agent_that_was_dead_before_a_leader_began_gets_no_volume() {
    away::long_dead();
}

#[test]
fn what_was_ordered_of_a_machine_that_is_removed_is_ordered_elsewhere_or_goes() {
    away::removed();
}

#[test]
fn what_was_ordered_of_a_machine_that_is_removed_is_ordered_of_one_other_node() {
    away::removed_beside_others();
}

#[test]
fn what_an_agent_makes_that_lives_is_deleted_by_it_though_its_node_was_deleted() {
    deleted::node();
    deleted::node_and_words();
}

#[test]
fn a_volume_that_is_made_late_on_another_node_than_was_ordered_since_grows_and_goes_there() {
    misplaced::made_late();
}

#[test]
fn a_claim_whose_author_says_its_volumes_name_is_bound_to_it() {
    claim_authors::name();
}

#[test]
fn nothing_is_left_of_a_claim_whose_author_says_that_it_is_bound() {
    claim_authors::binding_and_end();
}

#[test]
fn nothing_is_left_of_a_claim_whose_author_takes_its_provisioner_away() {
    claim_authors::provisioner();
}

#[test]
fn a_claim_that_waits_for_a_node_is_counted_and_has_it_a_minute_after_it_was_uncordoned() {
    counted::uncordoned();
}

#[test]
fn a_claim_whose_chosen_node_is_dead_is_counted_and_so_is_that_node() {
    counted::chosen_and_dead();
}

#[test]
fn a_node_whose_driver_cannot_tell_its_room_is_not_asked_while_others_have_some() {
    unable::unknown();
}

#[test]
fn a_node_whose_driver_fails_again_and_again_loses_the_volume_to_another() {
    unable::failing();
}

#[test]
fn what_a_node_can_neither_make_nor_delete_is_made_elsewhere_when_a_person_says_that_it_is_not_there()
 {
    unable::undeletable();
}

#[test]
fn what_every_driver_refuses_of_one_tenant_can_be_had_by_others_and_is_asked_of_two_nodes() {
    infeasible::for_every_driver();
}

#[test]
fn nodes_that_refuse_volumes_of_several_tenants_keep_none_from_other_nodes() {
    infeasible::for_some_nodes();
}

#[test]
fn a_node_whose_driver_hangs_gets_no_new_volume_while_there_is_another() {
    unable::hanging();
}

#[test]
fn a_node_that_says_it_has_room_and_makes_nothing_keeps_no_claim() {
    unable::overstating();
}

#[test]
fn a_node_that_keeps_pods_out_gets_no_volume_while_there_is_another() {
    unable::podless();
}

#[test]
fn a_node_that_is_cordoned_gets_no_volume() {
    unable::cordoned();
}

#[test]
fn equal_nodes_get_volumes_in_turn() {
    unable::equal();
}

#[test]
fn a_claim_whose_only_node_lost_its_driver_is_told_and_had_when_that_is_back() {
    driverless::taken_from_the_only_node();
}

#[test]
fn what_a_driver_may_have_made_that_is_not_installed_any_more_is_waited_for_and_told() {
    driverless::taken_while_it_works();
}

#[test]
fn a_claim_whose_only_node_is_silent_before_it_began_is_told_and_goes_on_by_itself() {
    driverless::silent_alone();
}

#[test]
fn controllers_of_different_drivers_leave_each_others_node_volumes_alone() {
    alone::another_driver();
}

#[test]
fn what_was_ordered_of_a_driver_that_is_not_served_any_more_stays_and_is_told() {
    alone::former_driver();
}

#[test]
fn a_volume_that_was_let_go_of_is_not_deleted_again() {
    alone::let_go();
}

#[test]
fn kubelet_alone_grows_what_tells_no_sizes() {
    unmeasured::kubelet_expands();
}

#[test]
fn a_claim_shows_no_size_that_its_file_system_lacks_though_its_driver_was_just_upgraded() {
    unmeasured::upgraded();
}

#[test]
fn the_scheduler_is_asked_for_another_node_where_the_chosen_one_is_gone() {
    away::rescheduled();
}

#[test]
fn a_node_that_is_chosen_for_a_claim_is_taken_if_its_class_allows_it_whatever_keeps_pods_out() {
    away::chosen();
}

#[test]
fn an_api_server_that_has_a_name_is_found_or_the_program_ends_and_says_what_to_do() {
    found::by_name();
}

#[test]
fn a_leader_whose_renewal_was_done_and_not_answered_leads_on() {
    leading::unanswered();
}

#[test]
fn a_leader_whose_lease_somebody_else_took_ends() {
    leading::taken();
}

#[test]
fn what_a_driver_made_is_told_though_the_node_volume_has_changed_meanwhile() {
    lost::node_volume_changed();
}

#[test]
fn what_a_driver_made_and_nobody_was_told_of_is_deleted_where_it_is() {
    lost::agent_killed();
}

#[test]
fn an_order_that_is_made_anew_when_its_storage_has_gone_goes_too() {
    lost::recalled_late();
}

#[test]
fn storage_that_was_lost_with_its_machine_before_it_was_a_volume_is_made_again() {
    lost::replaced();
    lost::replaced_while_publishing();
}

#[test]
fn storage_that_is_to_be_retained_is_not_deleted_by_an_agent_that_reads_late() {
    retained::read_late();
}

#[test]
fn a_kept_volume_whose_claim_ref_names_the_next_claim_stays_until_it_is_bound_and_goes_for_that() {
    retained::handed_on();
}

#[test]
fn a_kept_volume_grows_for_a_claim_that_asks_for_it_with_our_finalizer() {
    retained::handed_on_to_a_held_claim();
}

#[test]
fn a_kept_volume_whose_claim_goes_while_it_grows_is_not_asked_to_be_smaller_than_it_is() {
    retained::claim_goes_while_it_grows();
}

#[test]
fn a_recovered_claim_counts_what_its_storage_may_have_until_its_node_has_measured_it() {
    recovered::while_its_node_is_away();
}

#[test]
fn nothing_is_recovered_while_its_storage_may_be_growing() {
    recovered::while_it_grows();
}

#[test]
fn a_volume_is_bound_to_a_label_that_its_node_alone_has() {
    hostnames::taken();
    hostnames::another();
}

#[test]
fn a_node_that_is_too_large_to_be_understood_keeps_no_claim_from_another_node() {
    candidates::large();
}

#[test]
fn a_node_whose_hostname_another_one_has_keeps_no_claim_from_another_node() {
    candidates::of_a_taken_name();
    candidates::of_a_taken_name_that_was_chosen();
}

#[test]
fn storage_that_cannot_be_bound_to_its_node_any_more_is_made_on_another_one() {
    candidates::of_a_name_that_is_taken_later();
}

#[test]
fn nothing_is_left_of_a_claim_whose_name_one_has_that_is_too_large_to_be_understood() {
    large_claims::successor();
}

#[test]
fn a_claim_that_is_too_large_to_be_understood_loses_nothing_and_that_is_told() {
    large_claims::own();
}

#[test]
fn nothing_is_left_of_a_claim_whose_name_one_has_with_a_time_that_cannot_be_understood() {
    unreadable::successor();
}

#[test]
fn a_claim_with_a_time_that_cannot_be_understood_grows_and_hides_no_other_from_status() {
    unreadable::own();
}

#[test]
fn what_others_keep_of_a_volume_that_another_node_is_to_make_is_named_and_not_asked_for_without_end()
 {
    infeasible::kept_by_others();
}

#[test]
fn storage_of_a_class_that_is_replaced_while_it_is_made_is_made_anew() {
    replaced::class();
}

#[test]
fn a_claim_that_was_replaced_without_its_provisioner_grows() {
    replaced::grows();
}

#[test]
fn whoever_asks_for_growth_that_nobody_can_do_is_told() {
    fixed::told();
}

#[test]
fn no_node_is_asked_for_more_than_a_class_allows_whoever_judges_the_claim() {
    limited::by_the_controller();
}

#[test]
fn what_a_class_allows_and_says_counts_also_while_no_watch_tells_of_it() {
    limited::unwatched();
}

#[test]
fn a_class_for_some_namespaces_has_no_volume_of_another_ones_claim_that_waited_for_it() {
    limited::to_a_namespace();
}

#[test]
fn a_request_that_is_lowered_while_its_storage_grows_counts_what_that_has() {
    lowered::while_it_expands(Kubernetes { expands: false });
    lowered::while_it_expands(Kubernetes { expands: true });
}

#[test]
fn a_request_that_is_lowered_because_there_is_no_room_counts_no_more() {
    lowered::without_room(Kubernetes { expands: false });
    lowered::without_room(Kubernetes { expands: true });
}

#[test]
fn a_request_that_is_lowered_because_growth_failed_late_counts_what_the_storage_has() {
    lowered::failed_late();
}

#[test]
fn a_request_that_is_lowered_counts_as_ordered_until_the_node_has_measured_less() {
    lowered::unanswered();
}

#[test]
fn a_lowered_request_whose_node_volume_is_lost_counts_what_was_allocated_for_it() {
    lowered::forgotten();
    lowered::forgotten_without_room(Kubernetes { expands: false });
    lowered::forgotten_without_room(Kubernetes { expands: true });
}

#[test]
fn a_claim_grows_where_the_api_server_drops_allocated_sizes() {
    lowered::dropped();
}

#[test]
fn a_node_that_says_more_than_rounding_explains_takes_nobodys_quota() {
    lowered::overstated();
}

#[test]
fn an_agent_is_ready_when_it_has_told_what_is_on_its_node() {
    untold::not_ready();
}

#[test]
fn an_agent_is_not_silent_while_its_drivers_are_slow_to_tell_what_room_there_is() {
    untold::slow_capacity();
}

#[test]
fn what_volumes_lack_is_measured_where_their_driver_knows_it() {
    untold::missing_bytes();
}

#[test]
fn an_agent_tells_how_full_a_pool_is_while_its_driver_knows() {
    untold::pool_space();
}

#[test]
fn nodes_that_have_no_room_after_all_are_asked_once() {
    patience::nodes_that_are_full();
}

#[test]
fn a_node_that_fails_in_the_same_way_again_is_no_reason_to_look_at_its_volume() {
    patience::failures_that_repeat();
}

#[test]
fn a_set_of_ten_thousand_claims_delays_no_other_set() {
    patience::huge_sets();
}

#[test]
fn a_set_of_pods_that_name_many_stuck_claims_delays_no_other_set() {
    evictions::set_of_stuck_pods();
}

#[test]
fn a_pod_of_many_claims_that_grow_is_looked_at_a_few_claims_at_a_time() {
    evictions::pod_of_many_claims();
}

#[test]
fn however_many_pods_have_storage_that_cannot_grow_another_one_has_its_turn() {
    evictions::first_of_many();
}

#[test]
fn a_set_that_is_edited_all_the_time_is_looked_at_now_and_then() {
    patience::touched_sets();
}

#[test]
fn a_set_of_many_claims_that_is_edited_all_the_time_rests_after_each_turn() {
    patience::touched_huge_sets();
}

#[test]
fn a_tenant_who_writes_large_objects_costs_no_memory() {
    tenants::large_claims();
}

#[test]
fn a_set_with_more_volumes_than_anybody_has_costs_no_memory() {
    large::one_set();
}

#[test]
fn sets_with_hundreds_of_long_annotations_cost_no_memory() {
    large::annotated_sets();
}

#[test]
fn pods_with_hundreds_of_claims_cost_no_memory() {
    large::pods();
}

#[test]
fn a_node_that_answers_with_long_words_costs_no_memory() {
    large::answers();
}

#[test]
fn a_claim_of_a_class_with_many_parameters_keeps_no_other_claim_from_its_volume() {
    large::parameters();
}

#[test]
fn a_node_volume_that_is_not_understood_is_named_and_keeps_no_claim_from_its_volume() {
    large::not_understood();
}

#[test]
fn whoever_floods_the_webhooks_with_large_and_deep_questions_costs_no_memory() {
    flood::questions();
}

#[test]
fn pods_that_ask_the_webhooks_without_end_delay_no_review_of_the_api_server() {
    flood::small_questions();
}

#[test]
fn a_tenant_that_edits_claims_without_end_delays_no_review_of_anothers_edits() {
    tenants::edits();
}

#[test]
fn whoever_floods_a_port_with_connections_keeps_no_probe_from_its_answer() {
    flood::connections();
}

#[test]
fn a_set_that_is_too_large_to_be_understood_is_left_alone_and_that_is_told() {
    large::too_large();
}

#[test]
fn a_tenant_who_edits_claims_all_the_time_delays_nobody_for_long() {
    tenants::touched_claims();
}

#[test]
fn what_the_scheduler_is_told_of_room_goes_with_what_was_installed() {
    room::owned();
}

#[test]
fn a_claim_has_the_class_for_which_it_is_counted() {
    tenants::annotated_class();
}

#[test]
fn a_leader_outlives_ten_seconds_in_which_the_api_server_is_too_busy() {
    refused::busy();
}

#[test]
fn whoever_has_a_claim_that_others_let_nobody_write_is_told() {
    refused::by_admission();
}

#[test]
fn whoever_has_a_claim_whose_volume_the_api_server_refuses_is_told() {
    refused::volume();
}

#[test]
fn a_secret_that_is_not_there_is_asked_for_less_and_less_often() {
    refused::no_secret();
}

#[test]
fn what_no_event_can_say_is_in_the_log() {
    refused::events();
}

#[test]
fn a_node_volume_that_is_said_not_to_be_there_is_asked_for_again() {
    refused::order_not_found();
}

#[test]
fn a_claim_is_made_grown_and_deleted_whatever_write_the_controller_is_killed_at() {
    rounds::killed("controller", 8);
}

#[test]
fn a_claim_is_made_grown_and_deleted_whatever_write_the_agent_is_killed_at() {
    rounds::killed("node", 5);
}

#[test]
fn what_people_set_right_is_looked_at_soon() {
    wakeups::state_present();
    wakeups::said_absent();
    wakeups::retained_then_deleted();
}

#[test]
fn a_kept_volume_without_its_node_volume_gets_one_when_another_claim_gets_it() {
    wakeups::handed_on_without_node_volume();
}

#[test]
fn a_node_volume_that_was_lost_while_nobody_led_is_made_anew() {
    wakeups::lost_while_nobody_led();
}

#[test]
fn a_volume_that_another_provisioner_made_needs_no_node_volume() {
    wakeups::of_another_provisioner();
}

#[test]
fn a_volume_grows_after_its_driver_has_learnt_to_tell_sizes() {
    unmeasured::driver_that_learns_to_measure();
}

#[test]
fn a_volume_grows_after_its_driver_has_learnt_to_grow_file_systems() {
    unmeasured::driver_that_learns_to_grow_file_systems();
}

#[test]
fn a_pod_is_not_stopped_while_one_that_is_too_large_may_have_its_volume() {
    // Of a pod no more than 256 volumes are read.
    evictions::volume_of_two_pods(300, "pod backup is too large to be understood");
}

#[test]
fn a_set_that_asks_for_more_than_kubernetes_counts_is_told() {
    evictions::more_than_kubernetes_counts();
}

#[test]
fn a_lost_node_volume_asks_for_no_growth_that_its_class_forbids() {
    limited::forbidden_before_a_loss();
}

#[test]
fn the_webhook_judges_the_room_of_a_node_also_after_a_node_volume_was_lost() {
    judged::after_a_loss();
}

#[test]
fn a_deletion_that_admission_refuses_is_told() {
    wakeups::refused_deletion();
}

#[test]
fn where_the_name_of_a_volume_is_taken_nothing_is_ordered_and_the_claim_can_go() {
    wakeups::name_is_taken();
}

#[test]
fn a_write_that_a_webhook_fails_while_a_claim_is_made_is_told_and_made_when_it_is_back() {
    webhooks::down_while_it_is_made();
}

#[test]
fn a_write_that_a_webhook_fails_while_a_claim_grows_is_told_and_made_when_it_is_back() {
    webhooks::down_while_it_grows();
}

#[test]
fn a_write_may_take_as_long_as_a_webhook() {
    webhooks::slow();
}

#[test]
fn an_event_that_the_api_server_did_not_take_is_not_held_back() {
    webhooks::refused_events();
}

#[test]
fn a_set_that_is_lowered_says_which_claims_ask_for_more() {
    webhooks::lowered_annotation();
}

#[test]
fn a_node_that_says_it_has_more_room_and_makes_nothing_keeps_no_claim() {
    liar::keeps_no_claim(liar::Answer::Exhausted);
}

#[test]
fn a_node_that_says_it_has_made_what_no_volume_can_be_made_of_keeps_no_claim() {
    liar::keeps_no_claim(liar::Answer::Rejected);
}

#[test]
fn a_node_whose_driver_answers_what_no_volume_can_have_keeps_no_claim_and_no_storage() {
    unstorable::options_of_one_node();
}

#[test]
fn a_node_that_fails_and_says_it_is_well_keeps_no_claim() {
    liar::keeps_no_claim(liar::Answer::Failed);
}

#[test]
fn a_growth_that_failed_is_not_shown_as_done_however_much_the_driver_says() {
    lowered::overstated_and_failed();
}

#[test]
fn a_pod_whose_volume_another_pod_has_too_is_not_stopped() {
    evictions::volume_of_two_pods(0, "pod backup on its node uses claim t0-db-0 too");
}

#[test]
fn a_pod_whose_init_container_fails_is_stopped_so_that_its_volume_grows() {
    evictions::init_container_that_fails();
}

#[test]
fn however_many_sets_grow_at_once_pods_are_stopped() {
    evictions::many_sets(60, 0);
}

#[test]
fn pods_of_many_claims_are_stopped_also_beside_other_sets() {
    evictions::many_sets(8, 24);
}
