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
    b'\x02up"\x88\x01\n\x06Target\x12\x1a\n\x08endpoint\x18\x01 \x01(\tR\x08endpoint\x122\n\nsubscriber\x18\x02 \x01'
    b'(\x0b2\x12.uprotocol.v1.UUriR\nsubscriber\x12 \n\tperiod_ns\x18\x03 \x01(\x04H\x00R\x08per'
    b'iodNs\x88\x01\x01B\x0c\n\n_period_ns"\x8a\x01\n\x05Route\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.'
    b'v1.UUriR\x05topic\x12\x18\n\x07ingress\x18\x02 \x01(\tR\x07ingress\x12=\n\x07targets\x18\x03 \x03(\x0b2#.'
    b'uprotocol.core.ustreamer.v1.TargetR\x07targets"c\n\x12FetchRoutesRe'
    b'quest\x125\n\x0ctopic_filter\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x0btopicFilter'
    b'\x12\x16\n\x06offset\x18\x02 \x01(\rR\x06offset"\xee\x01\n\x13FetchRoutesResponse\x12C\n\tendpoint'
    b's\x18\x01 \x03(\x0b2%.uprotocol.core.ustreamer.v1.EndpointR\tendpoints\x12:\n'
    b'\x06routes\x18\x02 \x03(\x0b2".uprotocol.core.ustreamer.v1.RouteR\x06routes\x12(\n'
    b'\x10has_more_records\x18\x03 \x01(\x08R\x0ehasMoreRecords\x12,\n\x07stopped\x18\x04 \x03(\x0b2\x12.u'
    b'protocol.v1.UUriR\x07stopped"\x96\x02\n\x06Ledger\x12\x1a\n\x08received\x18\x01 \x01(\x04R\x08rece'
    b'ived\x12\x1c\n\tdelivered\x18\x02 \x01(\x04R\tdelivered\x12\x1c\n\tthrottled\x18\x03 \x01(\x04R\tthrot'
    b'tled\x12\x18\n\x07expired\x18\x04 \x01(\x04R\x07expired\x12#\n\rdead_lettered\x18\x05 \x01(\x04R\x0cdeadL'
    b'ettered\x12\x16\n\x06denied\x18\x06 \x01(\x04R\x06denied\x12#\n\rno_subscriber\x18\x07 \x01(\x04R\x0cnoSu'
    b'bscriber\x12\x16\n\x06queued\x18\x08 \x01(\x04R\x06queued\x12 \n\x0bunaccounted\x18\t \x01(\x03R\x0bunacc'
    b'ounted"\xc5\x05\n\x12EndpointStatistics\x12\x1a\n\x08endpoint\x18\x01 \x01(\tR\x08endpoint\x12\x0e\n'
    b'\x02up\x18\x02 \x01(\x08R\x02up\x12%\n\x0equeue_messages\x18\x03 \x01(\x04R\rqueueMessages\x12\x1f\n\x0bqueu'
    b'e_bytes\x18\x04 \x01(\x04R\nqueueBytes\x12\x1c\n\tdelivered\x18\x05 \x01(\x04R\tdelivered\x12#\n\rd'
    b'ead_lettered\x18\x06 \x01(\x04R\x0cdeadLettered\x12\x18\n\x07expired\x18\x07 \x01(\x04R\x07expired\x12\x18'
    b'\n\x07retries\x18\x08 \x01(\x04R\x07retries\x12Y\n\x08counters\x18\t \x03(\x0b2=.uprotocol.core.'
    b'ustreamer.v1.EndpointStatistics.CountersEntryR\x08counters\x12)\n\x10b'
    b'locked_messages\x18\n \x01(\x04R\x0fblockedMessages\x12#\n\rclosed_routes\x18\x0b \x01('
    b'\x04R\x0cclosedRoutes\x12-\n\x12persisted_messages\x18\x0c \x01(\x04R\x11persistedMessag'
    b'es\x12+\n\x11subscriber_queues\x18\r \x01(\x04R\x10subscriberQueues\x12F\n\x07fullest\x18\x0e'
    b' \x03(\x0b2,.uprotocol.core.ustreamer.v1.SubscriberQueueR\x07fullest\x12'
    b'8\n\x18evicted_subscriber_limit\x18\x0f \x01(\x04R\x16evictedSubscriberLimit\x1a;\n'
    b'\rCountersEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\x04R\x05value:\x028\x01"\xd4'
    b'\x01\n\x0fSubscriberQueue\x122\n\nsubscriber\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\n'
    b'subscriber\x12%\n\x0equeue_messages\x18\x02 \x01(\x04R\rqueueMessages\x12\x1f\n\x0bqueue_b'
    b'ytes\x18\x03 \x01(\x04R\nqueueBytes\x12)\n\x10blocked_messages\x18\x04 \x01(\x04R\x0fblockedMes'
    b'sages\x12\x1a\n\x08failures\x18\x05 \x01(\x04R\x08failures"\xd1\x01\n\x10TargetStatistics\x12(\n\x05to'
    b'pic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic\x12;\n\x06target\x18\x02 \x01(\x0b2#.uprot'
    b'ocol.core.ustreamer.v1.TargetR\x06target\x12\x1a\n\x08received\x18\x03 \x01(\x04R\x08rec'
    b'eived\x12\x1c\n\tdelivered\x18\x04 \x01(\x04R\tdelivered\x12\x1c\n\tthrottled\x18\x05 \x01(\x04R\tthro'
    b'ttled"g\n\x16FetchStatisticsRequest\x125\n\x0ctopic_filter\x18\x01 \x01(\x0b2\x12.upro'
    b'tocol.v1.UUriR\x0btopicFilter\x12\x16\n\x06offset\x18\x02 \x01(\rR\x06offset"\xc8\x02\n\x17Fetch'
    b'StatisticsResponse\x120\n\x05since\x18\x01 \x01(\x0b2\x1a.google.protobuf.Timestam'
    b'pR\x05since\x129\n\x05total\x18\x02 \x01(\x0b2#.uprotocol.core.ustreamer.v1.Ledger'
    b'R\x05total\x12M\n\tendpoints\x18\x03 \x03(\x0b2/.uprotocol.core.ustreamer.v1.End'
    b'pointStatisticsR\tendpoints\x12G\n\x07targets\x18\x04 \x03(\x0b2-.uprotocol.core'
    b'.ustreamer.v1.TargetStatisticsR\x07targets\x12(\n\x10has_more_records\x18'
    b'\x05 \x01(\x08R\x0ehasMoreRecords"M\n\x10SomeipReturnCode\x12\x1f\n\x0breturn_code\x18\x01 \x01'
    b'(\rR\nreturnCode\x12\x18\n\x07payload\x18\x02 \x01(\x0cR\x07payload2\xfa\x03\n\tuStreamer\x12\x7f\n\x10St'
    b'artDispatching\x124.uprotocol.core.ustreamer.v1.StartDispatchin'
    b'gRequest\x1a5.uprotocol.core.ustreamer.v1.StartDispatchingRespo'
    b'nse\x12|\n\x0fStopDispatching\x123.uprotocol.core.ustreamer.v1.StopDis'
    b'patchingRequest\x1a4.uprotocol.core.ustreamer.v1.StopDispatchin'
    b'gResponse\x12p\n\x0bFetchRoutes\x12/.uprotocol.core.ustreamer.v1.Fetch'
    b'RoutesRequest\x1a0.uprotocol.core.ustreamer.v1.FetchRoutesRespo'
    b'nse\x12|\n\x0fFetchStatistics\x123.uprotocol.core.ustreamer.v1.FetchSt'
    b'atisticsRequest\x1a4.uprotocol.core.ustreamer.v1.FetchStatistic'
    b'sResponseb\x06proto3'
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
SubscriberQueue = _message_class(DESCRIPTOR.message_types_by_name["SubscriberQueue"], __name__)
TargetStatistics = _message_class(DESCRIPTOR.message_types_by_name["TargetStatistics"], __name__)
FetchStatisticsRequest = _message_class(DESCRIPTOR.message_types_by_name["FetchStatisticsRequest"], __name__)
FetchStatisticsResponse = _message_class(DESCRIPTOR.message_types_by_name["FetchStatisticsResponse"], __name__)
SomeipReturnCode = _message_class(DESCRIPTOR.message_types_by_name["SomeipReturnCode"], __name__)
