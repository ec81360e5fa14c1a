// Read by ThreadSanitizer when a process starts, before TSAN_OPTIONS.
//
// Debian's libraries are not built with TSan: what they synchronise by atomics is not seen, and what they touch through
// memcpy, new and delete would look like a race. gRPC hands an operation from the thread that starts it to the one that
// completes it by such atomics. The entries for it name only frames in which its headers, compiled here, serialise,
// parse and destroy that operation; the reactors' own code, which runs above StaticRun, stays watched. RocksDB's
// threads run templates of the standard library that are shared with our code.
// A session's table of channels belongs to its reads, which gRPC makes one after another; OnDone, which frees the
// session, comes after OnCancel.

extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "called_from_lib:libabsl_time.so\n"
         "called_from_lib:libabsl_time_zone.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:librocksdb.so\n"
         "called_from_lib:liblz4.so\n"
         "called_from_lib:libzstd.so\n"
         "called_from_lib:libupb.so\n"
         "race:librocksdb.so\n"
         "race:std::_Rb_tree<unsigned int, std::pair<unsigned int const, std::shared_ptr<trimtab::server::Channel>\n"
         "race:trimtab::server::Session::OnCancel\n"
         "race:grpc::internal::CallOpSet*FillOps\n"
         "race:grpc::internal::CallOpSet*FinalizeResult\n"
         "race:grpc::internal::*CallOpSet\n"
         "race:grpc::internal::CallbackWithSuccessTag::Set\n"
         "race:grpc::internal::CallbackWithSuccessTag::Clear\n"
         "race_top:grpc::internal::CallbackWithSuccessTag::Run\n"
         "race:grpc::internal::ClientCallbackReaderWriterImpl*::ClientCallbackReaderWriterImpl\n"
         "race:ServerCallbackReaderWriterImpl::CallOnDone\n"
         "race:ServerCallbackReaderWriterImpl::~\n";
}
