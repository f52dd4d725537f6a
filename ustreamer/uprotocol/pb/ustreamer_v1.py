# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/core/ustreamer/v1/ustreamer.proto
from ustreamer.uprotocol.pb import google_timestamp as _google_timestamp
from ustreamer.uprotocol.pb import uattributes as _uattributes
from ustreamer.uprotocol.pb import uri as _uri
from ustreamer.uprotocol.pb import ustatus as _ustatus
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n+uprotocol/core/ustreamer/v1/ustreamer.proto\x12\x1buprotocol.cor'
    b'e.ustreamer.v1\x1a\x1fgoogle/protobuf/timestamp.proto\x1a\x1euprotocol/v'
    b'1/uattributes.proto\x1a\x16uprotocol/v1/uri.proto\x1a\x1auprotocol/v1/us'
    b'tatus.proto"\xd9\x02\n\nDeadLetter\x129\n\nattributes\x18\x01 \x01(\x0b2\x19.uprotocol.v'
    b'1.UAttributesR\nattributes\x12\x1d\n\x07payload\x18\x02 \x01(\x0cH\x00R\x07payload\x88\x01\x01\x12-\n\x06'
    b'status\x18\x03 \x01(\x0b2\x15.uprotocol.v1.UStatusR\x06status\x12\x1a\n\x08endpoint\x18\x04 \x01('
    b'\tR\x08endpoint\x12\x1a\n\x08attempts\x18\x05 \x01(\rR\x08attempts\x12?\n\rfirst_attempt\x18\x06 \x01'
    b'(\x0b2\x1a.google.protobuf.TimestampR\x0cfirstAttempt\x12=\n\x0clast_attempt'
    b'\x18\x07 \x01(\x0b2\x1a.google.protobuf.TimestampR\x0blastAttemptB\n\n\x08_payload"'
    b'C\n\x17StartDispatchingRequest\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUr'
    b'iR\x05topic"\x1a\n\x18StartDispatchingResponse"B\n\x16StopDispatchingReque'
    b'st\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic"\x19\n\x17StopDispatch'
    b'ingResponse"n\n\x08Endpoint\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1c\n\ttransport\x18\x02 \x01'
    b'(\tR\ttransport\x12 \n\x0bauthorities\x18\x03 \x03(\tR\x0bauthorities\x12\x0e\n\x02up\x18\x04 \x01(\x08R'
    b'\x02up"\xae\x01\n\x06Target\x12\x1a\n\x08endpoint\x18\x01 \x01(\tR\x08endpoint\x122\n\nsubscriber\x18\x02 \x01'
    b'(\x0b2\x12.uprotocol.v1.UUriR\nsubscriber\x12(\n\rmax_frequency\x18\x03 \x01(\x01H\x00R'
    b'\x0cmaxFrequency\x88\x01\x01\x12\x18\n\x07stopped\x18\x04 \x01(\x08R\x07stoppedB\x10\n\x0e_max_frequency'
    b'"\x8a\x01\n\x05Route\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic\x12\x18\n\x07ingr'
    b'ess\x18\x02 \x01(\tR\x07ingress\x12=\n\x07targets\x18\x03 \x03(\x0b2#.uprotocol.core.ustream'
    b'er.v1.TargetR\x07targets"c\n\x12FetchRoutesRequest\x125\n\x0ctopic_filter\x18'
    b'\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x0btopicFilter\x12\x16\n\x06offset\x18\x02 \x01(\rR\x06offs'
    b'et"\xc0\x01\n\x13FetchRoutesResponse\x12C\n\tendpoints\x18\x01 \x03(\x0b2%.uprotocol.co'
    b're.ustreamer.v1.EndpointR\tendpoints\x12:\n\x06routes\x18\x02 \x03(\x0b2".uproto'
    b'col.core.ustreamer.v1.RouteR\x06routes\x12(\n\x10has_more_records\x18\x03 \x01('
    b'\x08R\x0ehasMoreRecords"\x96\x02\n\x06Ledger\x12\x1a\n\x08received\x18\x01 \x01(\x04R\x08received\x12\x1c\n\t'
    b'delivered\x18\x02 \x01(\x04R\tdelivered\x12\x1c\n\tthrottled\x18\x03 \x01(\x04R\tthrottled\x12\x18\n\x07'
    b'expired\x18\x04 \x01(\x04R\x07expired\x12#\n\rdead_lettered\x18\x05 \x01(\x04R\x0cdeadLettered\x12'
    b'\x16\n\x06denied\x18\x06 \x01(\x04R\x06denied\x12#\n\rno_subscriber\x18\x07 \x01(\x04R\x0cnoSubscriber'
    b'\x12\x16\n\x06queued\x18\x08 \x01(\x04R\x06queued\x12 \n\x0bunaccounted\x18\t \x01(\x03R\x0bunaccounted"\x8e'
    b'\x02\n\x12EndpointStatistics\x12\x1a\n\x08endpoint\x18\x01 \x01(\tR\x08endpoint\x12\x0e\n\x02up\x18\x02 \x01('
    b'\x08R\x02up\x12;\n\x06ledger\x18\x03 \x01(\x0b2#.uprotocol.core.ustreamer.v1.LedgerR\x06'
    b'ledger\x12%\n\x0equeue_messages\x18\x04 \x01(\x04R\rqueueMessages\x12\x1f\n\x0bqueue_bytes'
    b'\x18\x05 \x01(\x04R\nqueueBytes\x12-\n\x13queue_oldest_age_ms\x18\x06 \x01(\x04R\x10queueOldest'
    b'AgeMs\x12\x18\n\x07retries\x18\x07 \x01(\x04R\x07retries"\x97\x02\n\x10TargetStatistics\x12(\n\x05topi'
    b'c\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic\x12;\n\x06target\x18\x02 \x01(\x0b2#.uprotoc'
    b'ol.core.ustreamer.v1.TargetR\x06target\x12/\n\x13published_frequency\x18\x03'
    b' \x01(\x01R\x12publishedFrequency\x12/\n\x13delivered_frequency\x18\x04 \x01(\x01R\x12deliv'
    b'eredFrequency\x12\x1c\n\tdelivered\x18\x05 \x01(\x04R\tdelivered\x12\x1c\n\tthrottled\x18\x06 \x01'
    b'(\x04R\tthrottled"g\n\x16FetchStatisticsRequest\x125\n\x0ctopic_filter\x18\x01 \x01('
    b'\x0b2\x12.uprotocol.v1.UUriR\x0btopicFilter\x12\x16\n\x06offset\x18\x02 \x01(\rR\x06offset"\xc8'
    b'\x02\n\x17FetchStatisticsResponse\x120\n\x05since\x18\x01 \x01(\x0b2\x1a.google.protobuf.'
    b'TimestampR\x05since\x129\n\x05total\x18\x02 \x01(\x0b2#.uprotocol.core.ustreamer.v'
    b'1.LedgerR\x05total\x12M\n\tendpoints\x18\x03 \x03(\x0b2/.uprotocol.core.ustreame'
    b'r.v1.EndpointStatisticsR\tendpoints\x12G\n\x07targets\x18\x04 \x03(\x0b2-.uproto'
    b'col.core.ustreamer.v1.TargetStatisticsR\x07targets\x12(\n\x10has_more_'
    b'records\x18\x05 \x01(\x08R\x0ehasMoreRecords2\xfa\x03\n\tuStreamer\x12\x7f\n\x10StartDispatch'
    b'ing\x124.uprotocol.core.ustreamer.v1.StartDispatchingRequest\x1a5.'
    b'uprotocol.core.ustreamer.v1.StartDispatchingResponse\x12|\n\x0fStop'
    b'Dispatching\x123.uprotocol.core.ustreamer.v1.StopDispatchingReq'
    b'uest\x1a4.uprotocol.core.ustreamer.v1.StopDispatchingResponse\x12p'
    b'\n\x0bFetchRoutes\x12/.uprotocol.core.ustreamer.v1.FetchRoutesReque'
    b'st\x1a0.uprotocol.core.ustreamer.v1.FetchRoutesResponse\x12|\n\x0fFetc'
    b'hStatistics\x123.uprotocol.core.ustreamer.v1.FetchStatisticsReq'
    b'uest\x1a4.uprotocol.core.ustreamer.v1.FetchStatisticsResponseb\x06'
    b'proto3'
)

DeadLetter = _message_class(DESCRIPTOR.message_types_by_name["DeadLetter"], __name__)
StartDispatchingRequest = _message_class(DESCRIPTOR.message_types_by_name["StartDispatchingRequest"], __name__)
StartDispatchingResponse = _message_class(DESCRIPTOR.message_types_by_name["StartDispatchingResponse"], __name__)
StopDispatchingRequest = _message_class(DESCRIPTOR.message_types_by_name["StopDispatchingRequest"], __name__)
StopDispatchingResponse = _message_class(DESCRIPTOR.message_types_by_name["StopDispatchingResponse"], __name__)
Endpoint = _message_class(DESCRIPTOR.message_types_by_name["Endpoint"], __name__)
Target = _message_class(DESCRIPTOR.message_types_by_name["Target"], __name__)
Route = _message_class(DESCRIPTOR.message_types_by_name["Route"], __name__)
FetchRoutesRequest = _message_class(DESCRIPTOR.message_types_by_name["FetchRoutesRequest"], __name__)
FetchRoutesResponse = _message_class(DESCRIPTOR.message_types_by_name["FetchRoutesResponse"], __name__)
Ledger = _message_class(DESCRIPTOR.message_types_by_name["Ledger"], __name__)
EndpointStatistics = _message_class(DESCRIPTOR.message_types_by_name["EndpointStatistics"], __name__)
TargetStatistics = _message_class(DESCRIPTOR.message_types_by_name["TargetStatistics"], __name__)
FetchStatisticsRequest = _message_class(DESCRIPTOR.message_types_by_name["FetchStatisticsRequest"], __name__)
FetchStatisticsResponse = _message_class(DESCRIPTOR.message_types_by_name["FetchStatisticsResponse"], __name__)
