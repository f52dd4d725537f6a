# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/core/usubscription/v4/usubscription.proto
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper as _EnumTypeWrapper

from ustreamer.uprotocol.pb import google_timestamp as _google_timestamp
from ustreamer.uprotocol.pb import uri as _uri
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n3uprotocol/core/usubscription/v4/usubscription.proto\x12\x1fuprot'
    b'ocol.core.usubscription.v4\x1a\x1fgoogle/protobuf/timestamp.proto\x1a'
    b'\x16uprotocol/v1/uri.proto"\xc5\x02\n\x0cSubscription\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.up'
    b'rotocol.v1.UUriR\x05topic\x122\n\nsubscriber\x18\x02 \x01(\x0b2\x12.uprotocol.v1.UU'
    b'riR\nsubscriber\x12K\n\x06status\x18\x03 \x01(\x0e23.uprotocol.core.usubscriptio'
    b'n.v4.SubscriptionStatusR\x06status\x12?\n\nexpiration\x18\x04 \x01(\x0b2\x1a.google'
    b'.protobuf.TimestampH\x00R\nexpiration\x88\x01\x01\x12(\n\rsample_period\x18\x05 \x01(\rH'
    b'\x01R\x0csamplePeriod\x88\x01\x01B\r\n\x0b_expirationB\x10\n\x0e_sample_period"\xc8\x01\n\x10Subs'
    b'cribeRequest\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic\x12?\n\nex'
    b'piration\x18\x02 \x01(\x0b2\x1a.google.protobuf.TimestampH\x00R\nexpiration\x88\x01\x01\x12'
    b'(\n\rsample_period\x18\x03 \x01(\rH\x01R\x0csamplePeriod\x88\x01\x01B\r\n\x0b_expirationB\x10\n\x0e'
    b'_sample_period"\x8a\x01\n\x11SubscribeResponse\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uproto'
    b'col.v1.UUriR\x05topic\x12K\n\x06status\x18\x02 \x01(\x0e23.uprotocol.core.usubscri'
    b'ption.v4.SubscriptionStatusR\x06status">\n\x12UnsubscribeRequest\x12(\n'
    b'\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic"\x15\n\x13UnsubscribeRespon'
    b'se"\xc4\x01\n\x19FetchSubscriptionsRequest\x12:\n\x0ctopic_filter\x18\x01 \x01(\x0b2\x12.upr'
    b'otocol.v1.UUriH\x00R\x0btopicFilter\x88\x01\x01\x12D\n\x11subscriber_filter\x18\x02 \x01(\x0b2'
    b'\x12.uprotocol.v1.UUriH\x01R\x10subscriberFilter\x88\x01\x01B\x0f\n\r_topic_filterB'
    b'\x14\n\x12_subscriber_filter"q\n\x1aFetchSubscriptionsResponse\x12S\n\rsubsc'
    b'riptions\x18\x01 \x03(\x0b2-.uprotocol.core.usubscription.v4.Subscriptio'
    b'nR\rsubscriptions"\x16\n\x14NotificationsRequest"\x17\n\x15NotificationsRes'
    b'ponse"\x0e\n\x0cResetRequest"\x0f\n\rResetResponse*\x9a\x01\n\x12SubscriptionStatu'
    b's\x12\x16\n\x12STATUS_UNSPECIFIED\x10\x00\x12\x17\n\x13STATUS_UNSUBSCRIBED\x10\x01\x12\x1c\n\x18STATUS'
    b'_SUBSCRIBE_PENDING\x10\x02\x12\x15\n\x11STATUS_SUBSCRIBED\x10\x03\x12\x1e\n\x1aSTATUS_UNSUBS'
    b'CRIBE_PENDING\x10\x04b\x06proto3'
)

SubscriptionStatus = _EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["SubscriptionStatus"])
STATUS_UNSPECIFIED = 0
STATUS_UNSUBSCRIBED = 1
STATUS_SUBSCRIBE_PENDING = 2
STATUS_SUBSCRIBED = 3
STATUS_UNSUBSCRIBE_PENDING = 4

Subscription = _message_class(DESCRIPTOR.message_types_by_name["Subscription"], __name__)
SubscribeRequest = _message_class(DESCRIPTOR.message_types_by_name["SubscribeRequest"], __name__)
SubscribeResponse = _message_class(DESCRIPTOR.message_types_by_name["SubscribeResponse"], __name__)
UnsubscribeRequest = _message_class(DESCRIPTOR.message_types_by_name["UnsubscribeRequest"], __name__)
UnsubscribeResponse = _message_class(DESCRIPTOR.message_types_by_name["UnsubscribeResponse"], __name__)
FetchSubscriptionsRequest = _message_class(DESCRIPTOR.message_types_by_name["FetchSubscriptionsRequest"], __name__)
FetchSubscriptionsResponse = _message_class(DESCRIPTOR.message_types_by_name["FetchSubscriptionsResponse"], __name__)
NotificationsRequest = _message_class(DESCRIPTOR.message_types_by_name["NotificationsRequest"], __name__)
NotificationsResponse = _message_class(DESCRIPTOR.message_types_by_name["NotificationsResponse"], __name__)
ResetRequest = _message_class(DESCRIPTOR.message_types_by_name["ResetRequest"], __name__)
ResetResponse = _message_class(DESCRIPTOR.message_types_by_name["ResetResponse"], __name__)
